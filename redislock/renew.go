package redislock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// KeepAlive extends every entry of the session, including those that wait: the store could not
// tell them from dead ones otherwise. Without entries there is nothing to send.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return s.renew(ctx, func(*ticket) bool { return true })
}

// renew extends the entries of the tickets that which selects, beginning with those that were
// renewed longest ago: the next call begins with those that this one has no time for.
//
// Tickets that are registered after it has begun need no renewal: their requests are sent later,
// and give them a whole TTL.
func (s *session) renew(ctx context.Context, which func(*ticket) bool) (time.Duration, error) {
	began := bootclock.Now()
	s.Lock()
	if s.Closed() {
		s.Unlock()
		return 0, errSessionClosed
	}
	var all []*ticket
	for t := range s.Tickets() {
		if which(t) {
			all = append(all, t)
		}
	}
	// By name if the age is the same, as it is for entries that were renewed together: each
	// name of a call costs the server extra work.
	slices.SortFunc(all, func(a, b *ticket) int {
		if c := a.Extra.renewed.Compare(b.Extra.renewed); c != 0 {
			return c
		}
		return strings.Compare(a.Extra.key, b.Extra.key)
	})
	s.Unlock()
	if len(all) == 0 {
		return s.Options.TTL, nil
	}
	tally := renewInSlices(ctx, s.queue.conn, s.Options.TTL, all, func(t *ticket) string { return t.Extra.key }, s.renewSlice)
	s.Lock()
	for _, t := range all {
		if !s.Has(t) {
			continue // it has left, or is gone
		}
		tally.All++
		if t.Extra.renewed.Before(began) {
			tally.Late[t.Request.ID] = keepalive.Left(s.Options.TTL, t.Extra.renewed, began)
		}
	}
	s.Unlock()
	return tally.Answer(ctx)
}

// sentTicket is a ticket, and what was known of it when its renewal was sent.
type sentTicket struct {
	*ticket
	confirmed bool
}

// batch is one call of the renewing script.
type batch struct {
	call    redisconn.Call
	tickets []sentTicket // in the order in which the script numbers them, from 1
}

// renewSlice makes the calls for one slice: one, or in a cluster, where a call has a single
// slot, one for each name.
//
// It leaves out tickets that have left since: if a ticket's request to leave is lost, a renewal
// would keep its entry for another TTL.
func (s *session) renewSlice(ctx context.Context, slice []*ticket) []redisconn.Reply {
	batches := s.batches(slice)
	if len(batches) == 0 {
		return nil
	}
	calls := make([]redisconn.Call, len(batches))
	for i, b := range batches {
		calls[i] = b.call
	}
	sent := bootclock.Now()
	replies := s.queue.guard.EvalAll(ctx, renewScript, calls, s.queue.opts.Replicas)
	for i, r := range replies {
		switch {
		case r.Err == nil:
			replies[i].Err = s.apply(batches[i], r.Value, sent)
		case r.Value != nil:
			// Replicas have not confirmed it: a master that is cut off from them may have been
			// replaced, and its holders must end. What the answer reports is true all the same.
			_ = s.apply(batches[i], r.Value, bootclock.Instant{})
		}
	}
	return replies
}

func (s *session) batches(slice []*ticket) []*batch {
	s.Lock()
	defer s.Unlock()
	oneName := s.queue.conn.Topology() == redisconn.Cluster
	slice = slices.DeleteFunc(slices.Clone(slice), func(t *ticket) bool { return !s.Has(t) })
	var all []*batch
	for i := 0; i < len(slice); {
		of := i + 1 // the name of the first
		for of < len(slice) && slice[of].Extra.key == slice[i].Extra.key {
			of++
		}
		if len(all) == 0 || oneName {
			all = append(all, &batch{call: redisconn.Call{Args: []string{s.ttl, s.keep}}})
		}
		all[len(all)-1].add(slice[i:of])
		i = of
	}
	return all
}

// add adds a name with its tickets. The caller has the session's lock.
func (b *batch) add(tickets []*ticket) {
	b.call.Keys = append(b.call.Keys, tickets[0].Extra.key)
	b.call.Args = append(b.call.Args, strconv.Itoa(len(tickets)))
	for _, t := range tickets {
		believed := "w"
		if t.Held() {
			believed = "h"
		}
		b.call.Args = append(b.call.Args, believed+t.Request.ID)
		b.tickets = append(b.tickets, sentTicket{t, t.Confirmed()})
	}
}

// apply reads the news: pairs of a ticket's number and what became of its entry.
func (s *session) apply(b *batch, reply any, sent bootclock.Instant) error {
	news, ok := reply.([]any)
	if !ok || len(news)%2 != 0 {
		return fmt.Errorf("renewal: unexpected answer %T", reply)
	}
	var gone []*ticket
	s.Lock()
	for _, k := range b.tickets {
		// Also an entry that the store does not have and that is not confirmed: see below.
		if k.Extra.renewed.Before(sent) {
			k.Extra.renewed = sent
		}
	}
	for i := 0; i < len(news); i += 2 {
		at, ok1 := news[i].(int64)
		what, ok2 := news[i+1].(int64)
		if !ok1 || !ok2 || at < 1 || int(at) > len(b.tickets) {
			continue
		}
		k := b.tickets[at-1]
		switch {
		case !s.Has(k.ticket): // it has left, or is gone
		case what > 0:
			k.Grant(uint64(what))
		case what < 0 && !k.Extra.watching:
			k.Extra.watching = true
			k.AskAfter(time.Duration(-what) * time.Microsecond)
		case what == 0 && k.confirmed:
			gone = append(gone, k.ticket)
		case what == 0:
			// A request that was unanswered when this was sent may not have arrived yet: it gives
			// its entry a whole TTL when it does. Or the server has forgotten the entry since, and
			// the answer is late: see Enter.
			k.Extra.missed = true
		}
	}
	s.Unlock()
	s.Missing(gone)
	return nil
}
