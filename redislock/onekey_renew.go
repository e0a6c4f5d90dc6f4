package redislock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// KeepAlive extends the keys that we hold or may hold, beginning with those that were extended
// longest ago, as renew does. Waiters have nothing in the store that needs a renewal.
func (s *oneKeySession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	began := bootclock.Now()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, errSessionClosed
	}
	var all []*oneKeyTicket
	for _, t := range s.tickets {
		if t.sent {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *oneKeyTicket) int { return a.renewed.Compare(b.renewed) })
	s.mu.Unlock()
	if len(all) == 0 {
		return s.opts.TTL, nil
	}
	tally := renewInSlices(ctx, s.store.conn, s.opts.TTL, all, func(t *oneKeyTicket) string { return t.keys[0] }, s.renewSlice)
	s.mu.Lock()
	for _, t := range all {
		if s.tickets[t.request.ID] != t || !t.sent {
			continue // it has left, is gone, or was refused
		}
		tally.All++
		if t.renewed.Before(began) {
			tally.Late[t.request.ID] = keepalive.Left(s.opts.TTL, t.renewed, began)
		}
	}
	s.mu.Unlock()
	return tally.Answer(ctx)
}

// sentKey is a ticket, and what was known of it when its renewal was sent.
type sentKey struct {
	*oneKeyTicket
	confirmed bool
}

// renewSlice makes the calls for one slice: one, or in a cluster one for each key.
func (s *oneKeySession) renewSlice(ctx context.Context, slice []*oneKeyTicket) []redisconn.Reply {
	most := sliceEntries
	if s.store.conn.Topology() == redisconn.Cluster {
		most = 1
	}
	var keys []sentKey
	var calls []redisconn.Call
	s.mu.Lock()
	for _, t := range slice {
		if s.tickets[t.request.ID] != t || !t.sent {
			continue
		}
		if len(keys)%most == 0 {
			calls = append(calls, redisconn.Call{Args: []string{millis(s.opts.TTL)}})
		}
		c := &calls[len(calls)-1]
		c.Keys = append(c.Keys, t.keys[0])
		c.Args = append(c.Args, s.store.dialect.me(t))
		keys = append(keys, sentKey{t, t.held})
	}
	s.mu.Unlock()
	if len(calls) == 0 {
		return nil
	}
	sent := bootclock.Now()
	replies := s.store.guard.EvalAll(ctx, s.store.dialect.extend, calls, 0)
	for i, r := range replies {
		if r.Err == nil {
			s.applyRenewal(keys[i*most:min((i+1)*most, len(keys))], r.Value, sent)
		}
	}
	return replies
}

// applyRenewal reads an answer: the numbers of the keys that are not ours. If a request was
// still unanswered when the renewal was sent, it may not have arrived yet, and gives its key a
// whole TTL when it does.
func (s *oneKeySession) applyRenewal(keys []sentKey, reply any, sent bootclock.Instant) {
	var gone []string
	s.mu.Lock()
	for _, k := range keys {
		if k.renewed.Before(sent) {
			k.renewed = sent
		}
	}
	lost, _ := reply.([]any)
	for _, n := range lost {
		at, ok := n.(int64)
		if !ok || at < 1 || int(at) > len(keys) {
			continue
		}
		k := keys[at-1]
		if k.left || s.tickets[k.request.ID] != k.oneKeyTicket {
			continue
		}
		if !k.confirmed {
			k.missed = true // see apply, of a queue's session
			continue
		}
		k.gone, k.sent = true, false
		delete(s.tickets, k.request.ID)
		k.signal.Notify()
		gone = append(gone, k.request.ID)
	}
	s.mu.Unlock()
	for _, id := range gone {
		s.opts.Gone(id, fmt.Errorf("%w: the key is not ours at the renewal", driver.ErrGone))
	}
}
