package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/audit"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/page"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// session is a client's: one driver.Session and its locks.
type session struct {
	server *Server
	id     string
	owner  *access.Holder // the token that has opened it
	ttl    time.Duration  // the longest that its client trusts it without a keep-alive
	drv    driver.Session
	turn   *turn // of keep-alives

	eventsTurn  *turn         // of requests for events: one is open at a time
	eventsBegun chan struct{} // closed by the first of them, or by the session's end
	beginEvents func()        // closes it
	eventsPause *time.Timer   // since the last of them was answered

	mu        sync.Mutex
	dead      *httpapi.Problem // not nil: the store has none, or it is being closed
	until     time.Time        // no client can trust it after this: see keptAliveLocked
	renewal   int              // keep-alives under way
	numbers   numbers
	locks     map[uint64]*lock
	entries   map[string]*lock // by the entry's id
	version   uint64           // of the last loss or change
	listens   bool             // a request for events is open
	eventsCut bool             // its client has cut off its request for events, or sends none
	changed   chan struct{}    // closed at the next one, and then another
}

// gone is the driver's SessionOptions.Gone: it is called from anywhere, and only notes.
func (s *session) gone(entry string, err error) {
	if entry == "" {
		s.end(audit.Loss, httpapi.NewProblem(httpapi.SessionGone, fmt.Sprintf("the store has ended the session: %v", err)))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.entries[entry]
	if l == nil || l.lost != "" {
		return
	}
	l.lost = err.Error()
	s.countWaitingLocked(l, false)
	s.newsLocked(l)
	s.auditLocked(audit.Loss, l, err)
	if l.held {
		s.server.page.Lost(page.Loss{Name: l.name, Token: s.owner.Name, Why: l.lost, At: time.Now()})
	}
}

// report has events tell what has become of a lock that no request waited for.
func (s *session) report(l *lock, a httpapi.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[l.number] == l && l.lost == "" {
		l.changed = &httpapi.Changed{Lock: l.number, State: a.State, Token: a.Token}
		s.newsLocked(l)
	}
}

func (s *session) newsLocked(l *lock) {
	s.version++
	l.version = s.version
	s.notifyLocked()
}

func (s *session) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// end ends the session for its requests, and reports whether it was alive: the first reason stays.
// event says what becomes of what it holds.
func (s *session) end(event string, why *httpapi.Problem) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endLocked(event, why)
}

func (s *session) endLocked(event string, why *httpapi.Problem) bool {
	if s.dead != nil {
		return false
	}
	s.dead = why
	s.beginEvents() // nothing waits for them any more
	s.eventsPause.Stop()
	var reason error
	if event != audit.Release { // which has one where the lock was gone
		reason = why
	}
	for _, l := range s.locks {
		s.auditLocked(event, l, reason)
		s.countWaitingLocked(l, false)
		l.turn.end(why) // a request that comes to its turn later sees that the session is dead
	}
	s.notifyLocked()
	return true
}

// state is the problem of a session that has ended, or nil.
func (s *session) state() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead != nil {
		return s.dead
	}
	return nil
}

// keepAlive passes a keep-alive on to the store.
func (s *session) keepAlive(client context.Context) (httpapi.Alive, error) {
	u, err := s.turn.take(client, s.server.over)
	if err != nil {
		return httpapi.Alive{}, err
	}
	defer u.release()
	ctx, cancel := context.WithTimeout(u.ctx, storeAnswer)
	defer cancel()
	s.mu.Lock()
	if s.dead != nil {
		defer s.mu.Unlock()
		return httpapi.Alive{}, s.dead
	}
	s.renewal++ // from here on the reaper leaves the session alone
	s.mu.Unlock()

	granted, err := s.drv.KeepAlive(ctx)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewal--
	partial := new(driver.PartialRenewal)
	switch {
	case errors.As(err, &partial):
		granted = partial.Granted
	case errors.Is(err, driver.ErrGone):
		s.endLocked(audit.Loss, httpapi.NewProblem(httpapi.SessionGone, err.Error()))
		return httpapi.Alive{}, s.dead
	case err != nil:
		return httpapi.Alive{}, err
	case s.dead != nil: // it was closed meanwhile: what the store has granted is void
		return httpapi.Alive{}, s.dead
	}
	s.revokeLocked(s.until)
	granted = s.keptAliveLocked(granted)
	alive := httpapi.Alive{Valid: granted.Milliseconds(), Lost: s.lostLocked(0)}
	if partial.Err != nil {
		alive.Error = withoutAddresses(partial.Err.Error())
		for entry, left := range partial.Late {
			if l := s.entries[entry]; l != nil {
				alive.Late = append(alive.Late, httpapi.Late{
					Lock: l.number, Valid: min(left, s.ttl).Milliseconds(), Unanswered: partial.Unanswered[entry],
				})
			}
		}
	}
	return alive, nil
}

// keptAliveLocked notes until when a client can trust the session, and returns what its client is
// told: what the store has granted, but not more than the client wanted. The client counts from
// before its request, so that its trust ends before now + granted. An earlier answer may have
// granted longer, and the client goes by that if this one is lost: so the time never goes back.
func (s *session) keptAliveLocked(granted time.Duration) time.Duration {
	granted = min(granted, s.ttl)
	if until := time.Now().Add(granted); until.After(s.until) {
		s.until = until
	}
	return granted
}

// expire ends a session that no client can trust any more, or that the store has ended, and reports
// whether it is over. It leaves one alone that is being kept alive at this moment: the store may
// have granted that, and to close the session then would take away what its client is about to be
// told. The margin is for requests that come a little late: the store decides about those.
func (s *session) expire(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead == nil && s.renewal == 0 && now.After(s.until.Add(reapMargin)) {
		s.endLocked(audit.Loss, httpapi.NewProblem(httpapi.SessionGone, "the session was not kept alive"))
	}
	return s.dead != nil
}

const reapMargin = time.Second

func (s *session) lostLocked(after uint64) (all []httpapi.Lost) {
	for _, l := range s.locks {
		if l.lost != "" && l.version > after {
			all = append(all, httpapi.Lost{Lock: l.number, Detail: l.lost})
		}
	}
	return all
}

// news are what is newer than after. It forgets the losses before: its client has seen them. What
// it returns is closed at the next news.
func (s *session) news(after uint64) (e httpapi.Events, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead != nil {
		return e, nil, s.dead
	}
	for _, l := range s.locks {
		switch {
		case l.lost != "" && l.version <= after:
			s.dropLocked(l)
		case l.lost == "" && l.changed != nil && l.version > after:
			e.Changed = append(e.Changed, *l.changed)
		}
	}
	e.Version, e.Lost = s.version, append([]httpapi.Lost{}, s.lostLocked(after)...)
	return e, s.changed, nil
}

// heldLocks are in no order: who looks at some of them now and then sees all.
func (s *session) heldLocks() (all []*lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.locks {
		if l.held && l.lost == "" {
			all = append(all, l)
		}
	}
	return all
}
