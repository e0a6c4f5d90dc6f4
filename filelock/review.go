//go:build linux || darwin || freebsd

package filelock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
)

// reviewBound is how long a review may wait for those who are at a queue file, in all. What it
// has not come to is looked at the next time.
const reviewBound = time.Second

// review looks whether everything that is held is still in the store, every tendEvery. A
// holder is rung when it is evicted, where there are bells. Nobody rings when an older copy is
// written into a queue file, and whoever opens the file then can hold what we believe to hold.
//
// The entries of a file are looked at in one critical section: 10,000 held locks take 64 of
// them, a few milliseconds in all.
func (s *session) review() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.work.Add(1) // Close waits
	defer s.work.Done()
	held := map[*queueFile][]*ticket{}
	for _, t := range s.tickets {
		if t.held.Load() {
			held[t.file] = append(held[t.file], t)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.done, reviewBound)
	defer cancel()
	for q, tickets := range held {
		s.inspect(ctx, q, tickets)
	}
}

// heldIn finds what this process holds in a queue file, whose gate the caller has.
func (s *store) heldIn(q *queueFile) (held []*ticket) {
	for _, o := range s.all() {
		o.mu.Lock()
		for _, t := range o.tickets {
			if t.file == q && t.held.Load() {
				held = append(held, t)
			}
		}
		o.mu.Unlock()
	}
	return held
}

// undone tells everybody in this process who held something in a queue file that it is gone,
// and then takes the file as it is. Nobody is granted anything in between: the file is refused
// until then, also to those who come here at once. Of these the first to be through lets others
// in, whom the rest know nothing of, and must not tell.
func (s *store) undone(q *queueFile, held []*ticket, why error) {
	for _, t := range held {
		// Told first: whoever comes here beside us and does not find it any more
		// must be right to go on.
		t.session.opts.Gone(t.request.ID, asGone(why))
		t.session.forget(t)
	}
	q.last.Store(0)
}

// inspect tells the core which of some held entries of one file are not there any more.
func (s *session) inspect(ctx context.Context, q *queueFile, tickets []*ticket) {
	for _, t := range q.missing(ctx, tickets) {
		s.forget(t)
		s.opts.Gone(t.request.ID, fmt.Errorf("%w: evicted", driver.ErrGone))
	}
}

// missing returns those of the tickets whose entries have gone without them. In a file that
// cannot be read nobody gets a lock: they are not missing then.
func (q *queueFile) missing(ctx context.Context, tickets []*ticket) (gone []*ticket) {
	if q.lock(ctx) != nil {
		return nil
	}
	defer q.unlock()
	// Neighbours share a page, which is read once if they come one after the other.
	slices.SortFunc(tickets, func(a, b *ticket) int { return cmp.Compare(a.slot, b.slot) })
	for _, t := range tickets {
		if t.left.Load() {
			continue
		}
		if _, here, err := t.present(); err == nil && !here {
			gone = append(gone, t)
		}
	}
	return gone
}
