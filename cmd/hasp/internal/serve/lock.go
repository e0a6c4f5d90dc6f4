package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/audit"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// lock is a client's lock: one driver.Ticket.
type lock struct {
	number uint64
	name   string
	entry  string
	owner  string // as it is stored
	noWait bool   // the ticket does not queue
	ticket driver.Ticket
	turn   *turn

	published uint64 // the greatest number of a value; of the request that has the turn

	// Guarded by the session's mu.
	confirmed  bool // the store has answered that there is an entry
	uncertain  bool // a request was not answered: there may be one
	held       bool
	since      time.Time        // of the grant, until its end is in the audit
	token      uint64           // of that
	counted    bool             // it counts as waiting: see countWaitingLocked
	serverWait *use             // the server's newest wait for it, which may be over
	leaves     bool             // a request to release it has come
	lost       string           // not "": why it is gone
	changed    *httpapi.Changed // what has become of it while no request waited; nil: nothing
	version    uint64           // of the loss, or of the change
}

// find returns the session's lock of a number.
func (s *session) find(number uint64) (*lock, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch l := s.locks[number]; {
	case s.dead != nil:
		return nil, s.dead
	case l == nil:
		return nil, httpapi.NewProblem(httpapi.Gone, fmt.Sprintf("the session has no lock %d", number))
	default:
		return l.usable()
	}
}

// usable returns the lock unless it is lost or being released. A request that comes late must not
// overtake the release, nor take what its ticket then says for the end: the lock would be
// forgotten, and a release that is not confirmed yet not be repeated.
func (l *lock) usable() (*lock, error) {
	switch {
	case l.lost != "":
		return nil, httpapi.NewProblem(httpapi.Gone, l.lost)
	case l.leaves:
		return nil, httpapi.NewProblem(httpapi.Gone, fmt.Sprintf("lock %d is being released", l.number))
	}
	return l, nil
}

// enter returns the lock of a number, and makes it if the number was never used. That comes before
// the request to the store: from here on its number is used, and a loss is noted.
func (s *session) enter(number uint64, r driver.Request) (*lock, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead != nil {
		return nil, s.dead
	}
	if l := s.locks[number]; l != nil {
		if l.name != r.Name {
			return nil, httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("lock %d of the session is %q: a number is for one lock", number, l.name))
		}
		return l.usable()
	}
	if !s.numbers.free(number) {
		return nil, httpapi.NewProblem(httpapi.Gone, fmt.Sprintf("the session has used the number %d, and that lock is gone: take the next number", number))
	}
	if s.server.isDraining() {
		return nil, draining()
	}
	if s.entries[r.ID] != nil {
		return nil, httpapi.NewProblem(httpapi.Invalid, "another lock of the session has this entry")
	}
	if err := s.server.admitLock(s.owner); err != nil {
		return nil, err
	}
	s.numbers.use(number)
	l := &lock{number: number, name: r.Name, entry: r.ID, owner: r.Owner, noWait: r.NoWait, ticket: s.drv.Ticket(r), turn: newTurn()}
	s.locks[number], s.entries[r.ID] = l, l
	return l, nil
}

// take waits for the request's turn with a lock. What it returns must be released.
func (s *session) take(client context.Context, l *lock) (*use, error) {
	u, err := l.turn.take(client, s.server.over)
	if err != nil {
		return nil, s.ended(err)
	}
	if dead := s.state(); dead != nil { // it has ended what was under way before this
		u.release()
		return nil, dead
	}
	return u, nil
}

// step makes a request to the store. Its context ends with the client, with the session, and when
// the next request for the lock has come.
func (s *session) step(u *use, bound time.Duration, f func(context.Context) error) error {
	if err := u.step(bound, f); err != nil {
		return s.ended(err)
	}
	return nil
}

// use makes one request to the store about a lock when it is the request's turn.
func (s *session) use(client context.Context, l *lock, f func(context.Context) error) error {
	u, err := s.take(client, l)
	if err != nil {
		return err
	}
	defer u.release()
	return s.step(u, silence, f)
}

// asHolder is use for what only a holder may ask for. What is not held by the store's own answer is
// refused here: not every store looks.
func (s *session) asHolder(client context.Context, l *lock, f func(context.Context) error) error {
	return s.use(client, l, func(ctx context.Context) error {
		if held, _ := s.standing(l); !held {
			return httpapi.NewProblem(httpapi.Gone, fmt.Sprintf("lock %d is not held", l.number))
		}
		return f(ctx)
	})
}

// standing tells the answer that the store has given about a lock. It is asked when it is the
// request's turn: the one before may have been granted the lock. That one may also have been the
// server's wait, which the turn has ended, so that the client of a lock that waits is told to ask
// again.
func (s *session) standing(l *lock) (held, waits bool) {
	s.mu.Lock()
	held, waits = l.held, l.confirmed && !l.held
	s.mu.Unlock()
	if waits {
		s.report(l, httpapi.Lock{State: httpapi.Waiting})
	}
	return held, waits
}

// ended says of a request that a closed session has interrupted why that is.
func (s *session) ended(err error) error {
	if dead := s.state(); dead != nil && (isContext(err) || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrClosed)) {
		return dead
	}
	return err
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errOvertaken)
}

// note notes what the store has answered. entered: to a request that makes the entry.
func (s *session) note(l *lock, v driver.Verdict, err error, entered bool) (driver.Verdict, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.dead != nil: // its locks are forgotten, and one that begins to wait now would count for ever
		return driver.Verdict{}, s.dead
	case l.lost != "": // the loss has overtaken the answer
		return driver.Verdict{}, httpapi.NewProblem(httpapi.Gone, l.lost)
	case err != nil && entered && !l.confirmed && !l.uncertain && unchanged(err):
		s.dropLocked(l) // nothing was made, and nothing is to be left
		return v, err
	case err != nil:
		l.uncertain = l.uncertain || !unchanged(err)
		return v, err
	}
	if v.Held && !l.held {
		l.since, l.token = time.Now(), v.Token
		s.auditLocked(audit.Grant, l, nil)
	}
	l.confirmed, l.uncertain, l.held = true, false, v.Held
	s.countWaitingLocked(l, !v.Held)
	return v, nil
}

// unchanged reports an error by which the store says that it has done nothing.
func unchanged(err error) bool {
	return errors.Is(err, driver.ErrMismatch) || errors.Is(err, driver.ErrUnsupported) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrInvalid)
}

// dropGone forgets a lock that its client is about to be told is gone.
func (s *session) dropGone(l *lock, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, driver.ErrGone) && l.lost == "" {
		s.auditLocked(audit.Loss, l, err)
		s.dropLocked(l)
	}
}

func answer(l *lock, v driver.Verdict) httpapi.Lock {
	a := httpapi.Lock{
		State: httpapi.Waiting, Entry: l.entry, Retry: v.Retry.Milliseconds(), Holder: v.Holder, Place: v.Place, Quarantine: v.Quarantine.Milliseconds(), LooksOver: v.LooksOver,
	}
	if v.Held {
		a.State, a.Token = httpapi.Held, v.Token
	}
	if v.Retry > 0 && a.Retry == 0 {
		a.Retry = 1
	}
	return a
}

// leave releases a lock. It overtakes a request that is under way, which ends first.
func (s *session) leave(ctx context.Context, number uint64) error {
	s.mu.Lock()
	l := s.locks[number]
	switch {
	case s.dead != nil:
		defer s.mu.Unlock()
		return s.dead
	case l == nil:
		defer s.mu.Unlock()
		if s.numbers.wasReleased(number) {
			return nil // and the answer that said so was lost
		}
		s.numbers.use(number) // a request for it that is still under way comes too late
		return httpapi.NewProblem(httpapi.Gone, fmt.Sprintf("the session has no lock %d", number))
	}
	l.leaves = true
	s.mu.Unlock()
	err := s.use(ctx, l, l.ticket.Leave)
	if err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrForgotten) {
		s.mu.Lock()
		if err == nil {
			s.numbers.release(number)
		}
		s.auditLocked(audit.Release, l, err)
		s.dropLocked(l)
		s.mu.Unlock()
	}
	return err
}

// auditLocked writes what has become of a lock. Each grant has one end.
func (s *session) auditLocked(event string, l *lock, why error) {
	if s.server.o.Audit == nil || l.since.IsZero() {
		return
	}
	x := audit.Line{Event: event, Name: l.name, Client: s.owner.Name, Entry: l.entry, Token: l.token}
	_ = json.Unmarshal([]byte(l.owner), &x.Who) // a client may say anything of itself
	if why != nil {
		x.Reason = why.Error()
	}
	if event != audit.Grant {
		held := time.Since(l.since).Milliseconds()
		x.Held, l.since = &held, time.Time{}
	}
	s.server.o.Audit.Write(x)
}

// dropLocked forgets a lock of which nothing is left in the store.
func (s *session) dropLocked(l *lock) {
	s.countWaitingLocked(l, false)
	if s.locks[l.number] == l {
		delete(s.locks, l.number)
		s.server.count(s.owner, func(u *usage) { u.locks-- })
	}
	if s.entries[l.entry] == l {
		delete(s.entries, l.entry)
	}
}

func (s *session) countWaitingLocked(l *lock, waits bool) {
	if l.counted != waits {
		l.counted = waits
		s.server.count(s.owner, func(u *usage) {
			if waits {
				u.waiting++
			} else {
				u.waiting--
			}
		})
	}
}
