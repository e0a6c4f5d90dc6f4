package httplock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// A session moves when its server does not know it (another one answers, or the same was started
// anew) and when its server says that it is about to end. The client opens a session at the server
// that it reaches by then, and that one adopts what is held: the entries in the store pass from one
// session to the other in one step each, with their places and tokens (driver.Adopter). The core
// notices nothing.
//
// An entry that the store has by then freed is not adopted, and its loss is told. The trust of the
// core is untouched: it ends where it would have ended, until a keep-alive of the new session
// succeeds, and that is answered by the store after the adoption. While some is adopted and some is
// not, no keep-alive counts: a session that is about to end may still be kept alive, and what has
// left it would be trusted for too long. One that has counted since the new session was asked for
// makes that be renewed first (renewNext).
//
// What waits is not moved: a waiting entry cannot be adopted. It is removed from the store, so that
// the lock is granted to none who has given it up, told as gone, and the core queues again.
//
// If the client dies on the way, both sessions expire. If an answer is lost, the step is repeated:
// a number of the new session names the same lock, and an adoption that has been done finds its
// entry.

// location is where an entry is: in a session, as the lock of a number there, by a name in the
// store.
type location struct {
	session string
	number  uint64
	entry   string
}

// atOnce is how many locks are adopted at the same time.
const atOnce = 16

var (
	errPlaceLost = fmt.Errorf("%w: its server has ended, and a place in a queue cannot be moved to another", driver.ErrGone)
	errNextEnded = errors.New("the server that the session was being moved to has ended it")
	errNextShort = errors.New("the server that the session is being moved to keeps it for less time than its locks are trusted for")
)

func (s *session) startMoving(ctx context.Context) error {
	select {
	case s.moving <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *session) stopMoving() { <-s.moving }

// bounded is for one request of a move. While a session moves, its keep-alives wait: one request
// that is led to a dead host must leave them the time for more attempts on fresh connections,
// before the locks are lost. A short TTL gets less of them: a new connection and the store take
// their time, too.
func (s *session) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ttl := s.options.TTL
	return context.WithTimeout(ctx, min(patience, max(ttl/6, min(2*time.Second, ttl/3))))
}

// move moves what there is out of the session from. It reports whether the session lives on
// elsewhere, which it does not where it has no locks or the store cannot hand one on. After an
// error it can be called again, and goes on where it was.
func (s *session) move(ctx context.Context, from string) (bool, error) {
	if err := s.startMoving(ctx); err != nil {
		return false, err
	}
	defer s.stopMoving()
	switch {
	case s.done.Err() != nil:
		return false, errClosed
	case s.where() != from:
		return true, nil // another request has done it
	}
	if !slices.Contains(s.can, httpapi.Adopt) || !s.has() {
		return false, nil
	}
	if s.next == "" {
		if err := s.pause(ctx); err != nil {
			return false, err
		}
		s.b.client.CloseIdleConnections() // to a proxy that would lead to the same server again
		octx, cancel := s.bounded(ctx)
		defer cancel()
		sent := time.Now()
		a, err := s.b.openSession(octx, s.options.TTL)
		switch {
		case errors.Is(err, errOtherStore):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("the session could not be moved to another server: %w", err)
		case !slices.Equal(a.Can, s.can):
			_ = s.b.closeSession(octx, a.Session) // else it expires
			return false, nil
		}
		s.next, s.nextLast = a.Session, 0
		s.nextLasts(sent, a.Valid)
	}
	for {
		if err := s.adoptAll(ctx); err != nil {
			s.b.client.CloseIdleConnections() // to a host that may be dead
			return false, err
		}
		if left, switched := s.switchOver(); switched {
			s.abandon(ctx, left)
			return true, nil
		}
	}
}

// pause keeps a session from moving back and forth as fast as it can, where a proxy leads its
// requests now to one server and now to another. The first move does not wait.
func (s *session) pause(ctx context.Context) error {
	if time.Since(s.movedAt) > 10*time.Second {
		s.paused = 0
	} else {
		s.paused = min(2*s.paused+50*time.Millisecond, 2*time.Second)
	}
	select {
	case <-time.After(s.paused):
	case <-ctx.Done():
		return ctx.Err()
	}
	s.movedAt = time.Now()
	return nil
}

// moveAway moves the session from a server that is about to end, and has that one free the rest.
func (s *session) moveAway(ctx context.Context, from string) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if moved, err := s.move(ctx, from); err != nil || !moved {
		return false
	}
	_ = s.b.closeSession(ctx, from) // else it expires
	return true
}

// elsewhere reports that a held lock has left a session, or is leaving it. What that session says
// of it does not count: it may say gone, or released, because another one has adopted it.
func (s *session) elsewhere(id string, t *ticket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.held() && (s.id != id || t.leavesLocked(id))
}

func (t *ticket) leavesLocked(id string) bool { return t.to.number != 0 || t.at.session != id }

// counts reports that all that is held is in a session. If it is not, the session's keep-alive says
// nothing about what is in another one. One that counts is noted, by when what it grants is over.
func (s *session) counts(id string, until time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id != id {
		return false
	}
	for _, t := range s.tickets {
		if t.held() && t.leavesLocked(id) {
			return false
		}
	}
	if until.After(s.trusted) { // an earlier one that was granted for longer is trusted on
		s.trusted = until
	}
	return true
}

// follow is for a request that was made at a session which does not know it any more: the session
// moves, and the request is to be made again, or there is an error, of which the core is told.
func (s *session) follow(ctx context.Context, from string, why error) error {
	switch moved, err := s.move(ctx, from); {
	case err != nil:
		return err
	case !moved:
		s.options.Gone("", why)
		return why
	}
	return nil
}

func (s *session) has() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tickets) > 0
}

// held reports that a lock is held: it moves with its session.
func (t *ticket) held() bool { return t.holds && t.lost == nil }

// switchOver makes the next session this one, unless answers that were on their way have added to
// what is to be adopted. Requests that have failed at the old one then go to the new one. What may
// be left behind is returned.
func (s *session) switchOver() (left []leftBehind, switched bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.held() && t.to.entry == "" {
			return nil, false
		}
	}
	if s.trusted.After(s.lasts) { // what the next session is granted must last for as long: see renewNext
		return nil, false
	}
	if s.hangUp != nil {
		s.hangUp()
	}
	before, from := s.tickets, s.id
	s.tickets, s.id, s.last, s.next = map[uint64]*ticket{}, s.next, s.nextLast, ""
	for _, t := range before {
		switch {
		case t.held():
			t.at, t.to = t.to, location{}
			t.number = t.at.number
			t.unnameLocked()
			t.nameLocked(t.at.entry)
		case t.confirmed || t.uncertain:
			t.at.session, t.at.number = from, t.number
			t.orphanLocked()
			left = append(left, leftBehind{t, t.at, true})
			continue
		default:
			left = append(left, leftBehind{t, location{session: from, number: t.number}, false})
			t.goOnLocked()
		}
		s.tickets[t.number] = t
	}
	return left, true
}

// goOnLocked is for a ticket whose first request is about to be sent, or sent again, and goes to
// the new session.
//
// That the old one was answered for by session-gone does not prove that nothing was made there. Its
// server may live on behind a network that has failed in between, and a proxy may have repeated at
// another server a request that the first one has done. Where a store finds entries by their id
// alone (redis, MySQL), the same id would then be one entry in two sessions, and the end of the old
// one, which is not kept alive, would free it under the client. So this ticket never uses its id
// again, and the new server names the entry. What the old session has is removed before the request
// is sent again, or the client would queue behind itself until that session's time is over. If the
// removal is not answered, or the old server makes its entry after it, that is all that happens.
// Nor does the removal meet a lock that anybody relies on: a late answer of the old session is of
// no use to the ticket (leftBehindLocked).
func (t *ticket) goOnLocked() {
	t.s.last++
	t.number, t.moved = t.s.last, true
	t.granted, t.asksAgain = false, false
}
