package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// A session moves when its server does not know it (another one answers, or the same was started anew) and
// when its server says that it is about to end. The client opens a session at the server that it reaches by
// then, and that one adopts what is held: the entries in the store pass from one session to the other in one step
// each, with their places and tokens (driver.Adopter). The core notices nothing.
//
// An entry that the store has by then freed is not adopted, and its loss is told. The trust of the core is
// untouched: it ends where it would have ended, until a keep-alive of the new session succeeds, and that is
// answered by the store after the adoption.
//
// What waits is not moved: a waiting entry cannot be adopted. It is removed from the store, so that the lock is
// granted to none who has given it up, told as gone, and the core queues again.
//
// If the client dies on the way, both sessions expire. If an answer is lost, the step is repeated: a
// number of the new session names the same lock, and an adoption that has been done finds its entry.

// place is where an entry is: in a session, as the lock of a number there, by a name in the store.
type place struct {
	session string
	number  uint64
	entry   string
}

// atOnce is how many locks are adopted at the same time.
const atOnce = 16

var (
	errPlaceLost = fmt.Errorf("%w: its server has ended, and a place in a queue cannot be moved to another", driver.ErrGone)
	errNextEnded = errors.New("the server that the session was being moved to has ended it")
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

// move moves what there is out of the session from. It reports whether the session lives on elsewhere, which
// it does not where it has no locks or the store cannot hand one on. After an error it can be called again,
// and goes on where it was.
func (s *session) move(ctx context.Context, from string) (bool, error) {
	if err := s.startMoving(ctx); err != nil {
		return false, err
	}
	defer s.stopMoving()
	if s.where() != from {
		return true, nil // another request has done it
	}
	if !slices.Contains(s.can, httpapi.Adopt) || !s.has() {
		return false, nil
	}
	if s.next == "" {
		s.b.client.CloseIdleConnections() // to a proxy that would lead to the same server again
		a, err := s.b.openSession(ctx, s.options.TTL)
		if err != nil {
			return false, fmt.Errorf("the session could not be moved to another server: %w", err)
		}
		if !slices.Equal(a.Can, s.can) {
			_ = s.b.closeSession(ctx, a.Session) // else it expires
			return false, nil
		}
		s.next, s.nextLast = a.Session, 0
	}
	for {
		if err := s.adoptAll(ctx); err != nil {
			return false, err
		}
		if stranded, arrived := s.arrive(); arrived {
			s.abandon(ctx, stranded)
			return true, nil
		}
	}
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

// elsewhere reports that a ticket has left a session, or is leaving it. What that session says of it may be
// said because it was adopted.
func (s *session) elsewhere(id string, t *ticket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.lost == nil && (s.id != id || t.to.number != 0)
}

func (s *session) has() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tickets) > 0
}

func (t *ticket) held() bool { return t.token != 0 && t.lost == nil }

// remaining are the held locks that are not adopted yet, each with a number in the next session.
func (s *session) remaining() (all []*ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if !t.held() || t.to.entry != "" {
			continue
		}
		if t.to.number == 0 {
			s.nextLast++
			t.to = place{session: s.next, number: s.nextLast}
		}
		all = append(all, t)
	}
	return all
}

// adoptAll has the next session adopt all that remain.
func (s *session) adoptAll(ctx context.Context) error {
	remaining := s.remaining()
	errs := make([]error, len(remaining))
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, t := range remaining {
		slots <- struct{}{}
		all.Go(func() {
			errs[i] = s.adopt(ctx, t)
			<-slots
		})
	}
	all.Wait()
	if slices.ContainsFunc(errs, sessionGone) {
		s.turnBack()
		return errNextEnded
	}
	return errors.Join(errs...)
}

// adopt has the next session adopt one lock. An error is not about that lock: its loss is told.
func (s *session) adopt(ctx context.Context, t *ticket) error {
	s.mu.Lock()
	in := httpapi.AdoptLock{Acquire: t.request(), From: t.home.entry, Seq: t.token, FromSession: t.home.session, FromLock: t.home.number}
	to := t.to
	s.mu.Unlock()
	in.Entry, in.Value, in.NoWait = "", nil, false
	var a httpapi.Lock
	err := s.b.call(ctx, request{method: http.MethodPost, path: "/v1/locks/" + strconv.FormatUint(to.number, 10) + "/adopt", session: to.session, body: in}, &a)
	if err == nil && (a.State != httpapi.Held || a.Token != in.Seq || a.Entry == "") {
		err = fmt.Errorf("%w: another server has adopted something else", driver.ErrGone)
	}
	if sessionGone(err) || err != nil && !errors.Is(err, driver.ErrGone) {
		return err
	}
	s.mu.Lock()
	if err == nil {
		t.to.entry = a.Entry
		s.mu.Unlock()
		return nil
	}
	tell := t.held() && !t.left
	t.loseLocked(err)
	s.mu.Unlock()
	if tell {
		s.options.Gone(t.r.ID, err)
	}
	return nil
}

// turnBack gives the next session up: what it has adopted moves on from there.
func (s *session) turnBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.to.entry != "" {
			t.home = t.to
		}
		t.to = place{}
	}
	s.next = ""
}

// arrive makes the next session this one, unless answers that were on their way have added to what is to be
// adopted. Requests that have failed at the old one then go to the new one. What cannot go is returned.
func (s *session) arrive() (stranded []*ticket, arrived bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.held() && t.to.entry == "" {
			return nil, false
		}
	}
	before, from := s.tickets, s.id
	s.tickets, s.id, s.last, s.next = map[uint64]*ticket{}, s.next, s.nextLast, ""
	for _, t := range before {
		switch {
		case t.held():
			t.home, t.to = t.to, place{}
			t.number = t.home.number
			t.unnameLocked()
			t.nameLocked(t.home.entry)
		case t.confirmed || t.uncertain:
			t.home.session, t.home.number = from, t.number
			t.strandLocked()
			stranded = append(stranded, t)
			continue
		default: // its first request is about to be sent, or sent again
			s.last++
			t.number = s.last
		}
		s.tickets[t.number] = t
	}
	return stranded, true
}

// abandon removes the entries of stranded tickets from the store, as well as it can: else they stay in the queue,
// and may be granted the lock, until their session's time is over. Then it tells the core, which queues again.
func (s *session) abandon(ctx context.Context, stranded []*ticket) {
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for _, t := range stranded {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			s.mu.Lock()
			home, tell := t.home, t.confirmed && !t.left
			s.mu.Unlock()
			names := []string{home.entry}
			if home.entry == "" { // the answer that named it was lost
				names = []string{"", t.r.ID} // the one of the server, or ours
			}
			for _, name := range names {
				in := httpapi.EvictEntry{Name: t.r.Name, Entry: name, FromSession: home.session, FromLock: home.number}
				_ = s.b.call(ctx, request{method: http.MethodPost, path: "/v1/evict", body: in}, nil)
			}
			if tell {
				s.options.Gone(t.r.ID, errPlaceLost)
			}
		})
	}
	all.Wait()
}

// strandLocked gives up an entry in a session that this one has left.
func (t *ticket) strandLocked() {
	t.stranded = true
	t.loseLocked(errPlaceLost)
}
