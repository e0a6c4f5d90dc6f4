package redlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/quarantine"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// store is the backend.
type store struct {
	nodes  []*node
	quorum int // the least majority
	opts   Options
	label  string

	done context.Context // ended by Close; the parent of all work in the background
	end  context.CancelFunc
}

func newStore(conns []redisconn.Conn, o Options) *store {
	b := &store{quorum: len(conns)/2 + 1, opts: o}
	var names []string
	for _, c := range conns {
		n := &node{conn: c, guard: quarantine.NewGuard(c, setnx.CompanionPrefix, o.NoQuarantine, false)}
		b.nodes = append(b.nodes, n)
		names = append(names, n.String())
	}
	b.label = "redlock://" + strings.Join(names, ",")
	b.done, b.end = context.WithCancel(context.Background())
	return b
}

func (b *store) String() string { return b.label }

// minTTL leaves time for two renewals that wait for a silent server, besides the safety margin.
const minTTL = 500 * time.Millisecond

// Traits promises nothing that a majority of independent keys cannot keep; the package's
// documentation says why.
func (b *store) Traits() driver.Traits {
	return driver.Traits{Values: true, Push: true, Forgets: true, Liveness: driver.Leased, MinTTL: minTTL}
}

// Close ends the work in the background, and closes the connections that we opened.
func (b *store) Close() error {
	b.end()
	for _, n := range b.nodes {
		n.conn.Close()
	}
	return nil
}

// keys are those of the lock, its counter and its waiters. The lock's key is the name itself, as
// in the other libraries. There is no counter: see the package's documentation.
func (b *store) keys(name string) ([]string, error) {
	key := b.opts.Prefix + name
	if strings.HasPrefix(key, setnx.CompanionPrefix) {
		return nil, fmt.Errorf("%w: names that begin with %q are taken", driver.ErrUnsupported, setnx.CompanionPrefix)
	}
	braced, _ := setnx.Tag(key)
	return []string{key, key, setnx.WaitersPrefix + braced}, nil
}

// nodeTimeout is how long an attempt waits for the servers that it depends on. A server that hangs
// costs it once; a slow server that is taken for a hanging one costs a lock.
func (b *store) nodeTimeout(ttl time.Duration) (time.Duration, error) {
	p := b.opts.NodeTimeout
	if p == 0 {
		return min(max(ttl/10, 50*time.Millisecond), 2*time.Second), nil
	}
	if p > ttl/4 {
		return 0, fmt.Errorf("%w: node_timeout (%s) cannot be longer than a quarter of the TTL (%s)", driver.ErrInvalid, p, ttl)
	}
	return p, nil
}

// Open subscribes to the session's channel on every server, and returns when it is subscribed on
// a majority: releases are then announced, whichever minority is away. The servers
// have no other state of a session, and each entry has its expiry.
func (b *store) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	o.TTL = o.TTL.Truncate(time.Millisecond) // the servers are asked for whole milliseconds: promise no more
	timeout, err := b.nodeTimeout(o.TTL)
	if err != nil {
		return nil, 0, err
	}
	s := &session{
		store: b, opts: o, nodeTimeout: timeout, id: strings.ToLower(rand.Text()[:16]), // 80 random bits
		tickets: map[string]*ticket{}, pending: make([]pendingReleases, len(b.nodes)), settled: make(chan struct{}, 1),
	}
	s.done, s.finish = context.WithCancel(b.done)
	s.open, s.close = context.WithCancel(s.done)
	if err := s.listen(ctx); err != nil {
		s.finish()
		return nil, 0, err
	}
	return s, o.TTL, nil
}

// listen returns when a majority of the subscriptions is established, or too many have failed. Each
// goes on trying for as long as the session is open.
func (s *session) listen(ctx context.Context) error {
	type result struct {
		node int
		err  error
	}
	results := make(chan result, len(s.store.nodes)) // one slot for each: the reader may have gone
	for i, n := range s.store.nodes {
		l := &redisconn.Listener{
			Conn: n.conn, Channel: setnx.ChannelPrefix + s.id,
			Message:    func(text string) { s.releaseAnnounced(i, text) },
			Subscribed: func(context.Context) { s.subscribed() },
		}
		go func() {
			err := l.Start(s.open, s.open)
			results <- result{i, err}
			if err != nil {
				l.Run(s.open)
			}
		}()
	}
	errs := make([]error, len(s.store.nodes))
	for good, bad := 0, 0; good < s.store.quorum; {
		select {
		case r := <-results:
			if errs[r.node] = r.err; r.err == nil {
				good++
			} else if bad++; bad > len(s.store.nodes)-s.store.quorum {
				return s.store.enough(errs)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// A server that may have forgotten its votes abstains until the leases that depended on them are
// over: the delayed restart that Redlock's description leaves to the operator. So any number of
// servers may forget, at any time, as long as a majority does not abstain; with fewer nothing is
// granted, and held locks end.
//
// A holder's key is not set again at a server that abstains (see repair.go), although the holder
// may be the one that the server has forgotten: it may also have forgotten the vote for another
// client that is about to have a majority with it.

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
