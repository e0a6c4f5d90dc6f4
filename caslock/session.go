package caslock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
)

// session is a client's records. There is nothing of it in the store.
type session struct {
	backend *backend
	opts    driver.SessionOptions
	done    context.Context
	finish  context.CancelFunc

	mu      sync.Mutex
	closed  bool
	tickets map[string]*ticket // for which a write was sent, and that have not left, by ID
	leaving map[*ticket]bool   // whose Leave has no answer yet
	swept   time.Time

	repeated bool // the last KeepAlive has not renewed all
}

func (s *session) Ticket(r driver.Request) driver.Ticket {
	return &ticket{session: s, request: r, turn: make(chan struct{}, 1), mark: nonce() + ".", tried: map[string]attempt{}, freed: map[string]bool{}}
}

// renewalsAtOnce bounds the renewals that are under way at the same time.
const renewalsAtOnce = 32

// KeepAlive renews each record with one write, those that were renewed longest ago first.
//
// Held records are written at once, up to renewalsAtOnce. If that has failed for one, the next call
// leaves out those that were renewed in the last quarter of the TTL: one object that cannot be
// written is asked for again and again, and the others as often as always.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	began := s.backend.clock.now()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, errClosed
	}
	all := make([]*renewal, 0, len(s.tickets))
	for _, t := range s.tickets {
		all = append(all, &renewal{ticket: t, from: t.countsFrom()})
	}
	repeated := s.repeated
	s.mu.Unlock()
	s.sweep(began.At)
	if len(all) == 0 {
		return s.opts.TTL, ctx.Err()
	}
	slices.SortFunc(all, func(a, b *renewal) int { return a.from.Compare(b.from) })
	var due []*renewal
	for _, r := range all {
		switch {
		case !r.wasHeld():
			s.askBeside(r.ticket)
		case !repeated || !r.fresh():
			r.err = errNotAsked
			due = append(due, r)
		}
	}
	atOnce(len(due), renewalsAtOnce, func(i int) {
		if ctx.Err() == nil {
			due[i].err = due[i].renew(ctx)
		}
	})
	return s.tally(ctx, began, all)
}

// renewal is the part of one ticket in a KeepAlive.
type renewal struct {
	*ticket
	from bootclock.Instant // its TTL counted from here when the call began
	err  error
}

// fresh reports whether so little of its TTL has passed that it need not be renewed.
func (t *ticket) fresh() bool {
	return keepalive.Left(t.session.opts.TTL, t.countsFrom(), t.session.backend.clock.now()) > t.session.opts.TTL*3/4
}

// tally is the answer of a KeepAlive. An entry whose Enqueue is not answered has its own time, and
// makes no failure of the renewal of others.
func (s *session) tally(ctx context.Context, began bootclock.Instant, all []*renewal) (time.Duration, error) {
	ttl := s.opts.TTL
	tally := keepalive.Tally{TTL: ttl, Late: map[string]time.Duration{}}
	unanswered := map[string]bool{}
	failed, notAsked := false, false
	for _, r := range all {
		left, id := keepalive.Left(ttl, r.countsFrom(), began), r.request.ID
		switch held := r.wasHeld(); {
		case errors.Is(r.err, driver.ErrGone), !s.has(r.ticket): // told, or it has left
			continue
		case !held:
			tally.Late[id], unanswered[id] = left, true
		case r.err == nil:
			tally.TTL = min(tally.TTL, left) // renewed in this call, or lately
		default:
			tally.Late[id] = left
			if errors.Is(r.err, errNotAsked) {
				notAsked = true
			} else {
				tally.Err = r.err
				failed = failed || ctx.Err() == nil
			}
		}
		tally.All++
	}
	s.mu.Lock()
	s.repeated = len(tally.Late) > 0
	s.mu.Unlock()
	if len(unanswered) > 0 && len(unanswered) == len(tally.Late) {
		return 0, &driver.PartialRenewal{Granted: tally.TTL, Late: tally.Late, Unanswered: unanswered, Err: errUnanswered}
	}
	// A slow store leaves some that were not asked; one that hangs, or refuses, does not.
	tally.ServerFailed = failed || !notAsked
	granted, err := tally.Answer(ctx)
	if partial := new(driver.PartialRenewal); errors.As(err, &partial) {
		partial.Unanswered = unanswered
	}
	return granted, err
}

var errNotAsked = errors.New("there was no time to renew it")

// askBeside sees to an entry whose Enqueue has not been answered, without KeepAlive's waiting for
// it: when that has ended it finds out what became of it, and renews what was granted.
func (s *session) askBeside(t *ticket) {
	if !t.asking.CompareAndSwap(false, true) {
		return
	}
	s.backend.inBackground(func() {
		defer t.asking.Store(false)
		ctx, cancel := context.WithTimeout(s.done, s.opts.TTL)
		defer cancel()
		done, err := t.take(ctx)
		if err != nil {
			return
		}
		done()
		if s.has(t) && !(t.wasHeld() && t.fresh()) {
			t.renew(ctx)
		}
	})
}

// has reports whether a write of the ticket was sent, and it has not left.
func (s *session) has(t *ticket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tickets[t.request.ID] == t
}

// gone ends a ticket whose record is another's, or whose own time was over, and tells the core.
func (s *session) gone(t *ticket, why string) error {
	err := fmt.Errorf("%w: %s", driver.ErrGone, why)
	s.mu.Lock()
	known := s.tickets[t.request.ID] == t
	delete(s.tickets, t.request.ID)
	s.mu.Unlock()
	if known {
		s.opts.Gone(t.request.ID, err)
	}
	return err
}

// Close frees all records. Called again, it repeats what has failed.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.finish()
	for _, t := range s.tickets {
		s.leaving[t] = true
	}
	var all []*ticket
	for t := range s.leaving {
		all = append(all, t)
	}
	clear(s.tickets)
	s.mu.Unlock()
	failed := make([]error, len(all))
	atOnce(len(all), renewalsAtOnce, func(i int) {
		if err := all[i].Leave(ctx); !errors.Is(err, driver.ErrGone) {
			failed[i] = err
		}
	})
	return errors.Join(append(failed, ctx.Err())...)
}

// sweep deletes free records that were not used for a retention, where the store can delete on a
// condition. None of them is missed: a version or the clock is a greater token for the next grant.
func (s *session) sweep(now time.Time) {
	b := s.backend
	deleter, ok := b.store.(Deleter)
	s.mu.Lock()
	due := ok && now.Sub(s.swept) > b.opts.Retention/4
	if due {
		s.swept = now
	}
	s.mu.Unlock()
	if !due {
		return
	}
	b.inBackground(func() {
		type old struct {
			name string
			v    Version
		}
		var unused []old
		b.list(b.done, "", func(r Record, v Version) bool { // an error leaves records for the next sweep
			if r.ID == "" && v != Absent && !r.Foreign && r.Nonce != "" && b.clock.wall().Sub(r.Renewed) > b.opts.Retention {
				unused = append(unused, old{r.Name, v})
			}
			return true
		})
		for _, o := range unused {
			call(b.done, b, func(ctx context.Context) (struct{}, error) { return struct{}{}, deleter.Delete(ctx, o.name, o.v) })
			if b.done.Err() != nil {
				return
			}
		}
	})
}
