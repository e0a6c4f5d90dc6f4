package redlock

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// A server that may have forgotten its votes abstains until the leases that depended on them are
// over: the delayed restart that Redlock's description leaves to the operator. So any number of
// servers may forget, at any time, as long as a majority does not abstain; with fewer nothing is
// granted, and held locks end.
//
// A holder's key is not set again at a server that abstains (see repair.go), although the holder may
// be the one that the server has forgotten: it may also have forgotten the vote for another client
// that is about to have a majority with it.

// quarantine is quarantineOf for the servers of one attempt.
func (c *count) quarantine(spare int) time.Duration {
	left := make([]time.Duration, len(c.closed))
	for i, b := range c.closed {
		left[i] = b.left
	}
	return quarantineOf(left, spare)
}

// quarantineOf is after how long no more servers abstain than a majority can do without.
func quarantineOf(left []time.Duration, spare int) time.Duration {
	if len(left) <= spare {
		return 0
	}
	slices.SortFunc(left, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	return left[spare]
}

// Quarantine asks all servers, and counts those as not abstaining that do not answer.
func (b *store) Quarantine(ctx context.Context, _ string) (time.Duration, error) {
	if b.opts.NoQuarantine {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	answers := make(chan time.Duration, len(b.nodes))
	for _, n := range b.nodes {
		go func() {
			left, _ := n.guard.Left(ctx, "")
			answers <- left
		}()
	}
	var left []time.Duration
	for range b.nodes {
		if d := <-answers; d > 0 {
			left = append(left, d)
		}
	}
	return quarantineOf(left, len(b.nodes)-b.quorum), nil
}
