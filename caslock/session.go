package caslock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/keepalive"
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
}

func (s *session) Ticket(r driver.Request) driver.Ticket {
	return &ticket{session: s, request: r, turn: make(chan struct{}, 1), mark: nonce() + ".", tried: map[string]attempt{}, freed: map[string]bool{}}
}

// renewalsAtOnce bounds the renewals that are under way at the same time.
const renewalsAtOnce = 32

// KeepAlive renews each record with one write, those that were renewed longest ago first.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, errClosed
	}
	all := make([]*ticket, 0, len(s.tickets))
	for _, t := range s.tickets {
		all = append(all, t)
	}
	s.mu.Unlock()
	s.sweep(began)
	if len(all) == 0 {
		return s.opts.TTL, ctx.Err()
	}
	age := make(map[*ticket]time.Time, len(all))
	for _, t := range all {
		age[t] = t.countsFrom()
	}
	slices.SortFunc(all, func(a, b *ticket) int { return age[a].Compare(age[b]) })
	failed := make([]error, len(all))
	for i := range failed {
		failed[i] = errNotAsked
	}
	keepalive.Slices(len(all), renewalsAtOnce, func(i int) bool {
		failed[i] = all[i].renew(ctx)
		return ctx.Err() == nil
	})
	tally := keepalive.Tally{TTL: s.opts.TTL, Late: map[string]time.Duration{}}
	for i, t := range all {
		switch err := failed[i]; {
		case errors.Is(err, driver.ErrGone): // told, or it has left
		case err != nil:
			tally.All++
			tally.Late[t.request.ID] = keepalive.Left(s.opts.TTL, t.countsFrom(), began)
			if !errors.Is(err, errNotAsked) {
				tally.Err = err
			}
		default:
			tally.All++
		}
	}
	return tally.Answer(ctx)
}

var errNotAsked = errors.New("there was no time to renew it")

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
	keepalive.Slices(len(all), renewalsAtOnce, func(i int) bool {
		if err := all[i].Leave(ctx); !errors.Is(err, driver.ErrGone) {
			failed[i] = err
		}
		return true
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
		b.store.List(b.done, "", func(r Record, v Version) bool { // an error leaves records for the next sweep
			if r.ID == "" && v != Absent && !r.Foreign && r.Nonce != "" && time.Since(r.Renewed) > b.opts.Retention {
				unused = append(unused, old{r.Name, v})
			}
			return true
		})
		for _, o := range unused {
			if deleter.Delete(b.done, o.name, o.v) != nil && b.done.Err() != nil {
				return
			}
		}
	})
}
