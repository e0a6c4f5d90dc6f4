package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
)

// namesPerCall bounds how long one renewal keeps the server from everybody else: about two
// milliseconds. In a cluster names live in different slots, and a call has one.
const namesPerCall = 350

// KeepAlive extends every entry of the session, those that wait included: they cannot be
// told from dead ones otherwise. Without entries there is nothing to send.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := s.renew(ctx, func(*ticket) bool { return true }); err != nil {
		return 0, err
	}
	return s.opts.TTL, nil
}

// known is what was known of a ticket when its renewal was sent.
type known struct {
	*ticket
	confirmed bool
}

// batch is one call of the renewing script.
type batch struct {
	call    redisconn.Call
	tickets []known // in the order in which the script numbers them, from 1
}

func (s *session) renew(ctx context.Context, which func(*ticket) bool) error {
	batches, err := s.batches(which)
	if err != nil || len(batches) == 0 {
		return err
	}
	calls := make([]redisconn.Call, len(batches))
	for i, b := range batches {
		calls[i] = b.call
	}
	for i, r := range s.queue.conn.EvalAll(ctx, renewScript, calls) {
		if r.Err == nil {
			r.Err = s.apply(batches[i], r.Value)
		}
		if r.Err != nil {
			err = r.Err
		}
	}
	if err != nil {
		redialAfter(ctx, s.queue.conn)
	}
	return err
}

// redialAfter gives up the connections if they have not answered in the time that a renewal
// had: the next one must not hang on them, too. A renewal that was cancelled says nothing of
// them, and whoever has cancelled it is about to leave, or to close, over the same ones.
func redialAfter(ctx context.Context, conn redisconn.Conn) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		conn.Redial()
	}
}

// batches groups the tickets by name and the names by call. By sorting: a map of the names took
// half of the client's time for ten thousand locks.
func (s *session) batches(which func(*ticket) bool) ([]*batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errSessionClosed
	}
	tickets := make([]*ticket, 0, len(s.tickets))
	for _, t := range s.tickets {
		if which(t) {
			tickets = append(tickets, t)
		}
	}
	slices.SortFunc(tickets, func(a, b *ticket) int { return strings.Compare(a.key, b.key) })
	most := namesPerCall
	if s.queue.conn.Topology() == redisconn.Cluster {
		most = 1
	}
	var all []*batch
	for len(tickets) > 0 {
		of := 1 // the name of the first
		for of < len(tickets) && tickets[of].key == tickets[0].key {
			of++
		}
		if len(all) == 0 || len(all[len(all)-1].call.Keys) == most {
			all = append(all, &batch{call: redisconn.Call{Args: []string{s.ttl, s.queue.retention}}})
		}
		all[len(all)-1].add(tickets[:of])
		tickets = tickets[of:]
	}
	return all, nil
}

// add adds a name with its tickets. The caller has session.mu.
func (b *batch) add(tickets []*ticket) {
	b.call.Keys = append(b.call.Keys, tickets[0].key)
	b.call.Args = append(b.call.Args, strconv.Itoa(len(tickets)))
	for _, t := range tickets {
		believed := "w"
		if t.held {
			believed = "h"
		}
		b.call.Args = append(b.call.Args, believed+t.request.ID)
		b.tickets = append(b.tickets, known{t, t.confirmed})
	}
}

// apply reads the news: pairs of a ticket's number and what became of its entry.
func (s *session) apply(b *batch, reply any) error {
	news, ok := reply.([]any)
	if !ok || len(news)%2 != 0 {
		return fmt.Errorf("renewal: unexpected answer %T", reply)
	}
	var gone []string
	s.mu.Lock()
	for i := 0; i < len(news); i += 2 {
		at, ok1 := news[i].(int64)
		what, ok2 := news[i+1].(int64)
		if !ok1 || !ok2 || at < 1 || int(at) > len(b.tickets) {
			continue
		}
		k := b.tickets[at-1]
		t := k.ticket
		switch {
		case t.left || t.gone:
		case what > 0:
			t.granted = uint64(what)
			t.bell.Ring()
		case what < 0 && !t.watching:
			t.watching, t.retry = true, time.Duration(-what)*time.Microsecond
			t.bell.Ring()
		case what == 0 && k.confirmed:
			// One whose request had not been answered when this was sent may simply not have
			// arrived yet: then it gets its whole TTL when it does.
			s.goneLocked(t)
			gone = append(gone, t.request.ID)
		}
	}
	s.mu.Unlock()
	for _, id := range gone {
		s.opts.Gone(id, fmt.Errorf("%w: no such entry at the renewal", driver.ErrGone))
	}
	return nil
}
