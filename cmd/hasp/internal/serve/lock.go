package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

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

// usable returns the lock unless it is lost or being released. A request that comes late must not overtake the release, nor take
// what its ticket then says for the end: the lock would be forgotten, and a release that is not confirmed yet not be repeated.
func (l *lock) usable() (*lock, error) {
	switch {
	case l.lost != "":
		return nil, httpapi.NewProblem(httpapi.Gone, l.lost)
	case l.leaves:
		return nil, httpapi.NewProblem(httpapi.Gone, fmt.Sprintf("lock %d is being released", l.number))
	}
	return l, nil
}

// enter returns the lock of a number, and makes it if the number was never used. That comes before the
// request to the store: from here on its number is used, and a loss is noted.
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
	if err := s.server.admitLock(s.owner, len(s.locks)); err != nil {
		return nil, err
	}
	s.numbers.use(number)
	l := &lock{number: number, name: r.Name, entry: r.ID, noWait: r.NoWait, ticket: s.drv.Ticket(r)}
	s.locks[number], s.entries[r.ID] = l, l
	return l, nil
}

// take waits for the request's turn with a lock. What it returns must be released.
func (s *session) take(client context.Context, l *lock) (*use, error) {
	u, err := l.turn.take(client)
	if err != nil {
		return nil, s.ended(err)
	}
	if dead := s.state(); dead != nil { // it has ended what was under way before this
		u.release()
		return nil, dead
	}
	return u, nil
}

// step makes a request to the store. The context ends with the client, with the session, and when the next request for the lock has come.
func (s *session) step(u *use, f func(context.Context) error) error {
	ctx, done := u.step(time.Now().Add(silence), false)
	defer done()
	err := f(ctx)
	if err == nil {
		return nil
	}
	if why := u.over(); why != nil && ctx.Err() != nil && isContext(err) {
		err = why
	}
	return s.ended(err)
}

// use makes one request to the store about a lock when it is the request's turn.
func (s *session) use(client context.Context, l *lock, f func(context.Context) error) error {
	u, err := s.take(client, l)
	if err != nil {
		return err
	}
	defer u.release()
	return s.step(u, f)
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

// enqueue asks the store once: it makes the entry, or finds it.
func (s *session) enqueue(ctx context.Context, l *lock) (driver.Verdict, error) {
	v, err := l.ticket.Enqueue(ctx)
	return s.heard(l, v, err, true)
}

// heard notes what the store has answered.
func (s *session) heard(l *lock, v driver.Verdict, err error, entered bool) (driver.Verdict, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.dead != nil: // its locks are forgotten, or about to be, and one that begins to wait now would be counted for ever
		return driver.Verdict{}, s.dead
	case l.lost != "": // the loss has overtaken the answer
		return driver.Verdict{}, httpapi.NewProblem(httpapi.Gone, l.lost)
	case errors.Is(err, driver.ErrGone):
		s.dropLocked(l)
		return v, err
	case err != nil && entered && !l.confirmed && !l.uncertain && unchanged(err):
		s.dropLocked(l) // nothing was made, and nothing is to be left
		return v, err
	case err != nil:
		l.uncertain = l.uncertain || !unchanged(err)
		return v, err
	}
	l.confirmed, l.uncertain, l.held = true, false, v.Held
	s.waitsLocked(l, !v.Held)
	return v, nil
}

// unchanged reports an error by which the store says that it has done nothing.
func unchanged(err error) bool {
	return errors.Is(err, driver.ErrMismatch) || errors.Is(err, driver.ErrUnsupported) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrInvalid)
}

// acquire enqueues and, for as long as the request says, waits. What is not held then stays in the
// queue.
//
// Whether it queues at all is for the first request to say, by which the ticket was made. A repeated one that says something else changes
// nothing: a place in the queue is not forgotten here while the store keeps it, and a ticket that does not queue is not waited for.
func (s *session) acquire(client context.Context, l *lock, wait time.Duration) (any, error) {
	if l.noWait {
		wait = 0
	}
	u, err := s.take(client, l)
	if err != nil {
		return nil, err
	}
	w := &lockWait{use: u, session: s, lock: l, asks: true, until: time.Now().Add(wait)}
	s.mu.Lock()
	before := l.confirmed || l.uncertain
	s.mu.Unlock()
	waits := !w.ask() && wait > 0
	refuse := before && s.server.isDraining()
	if waits && !refuse {
		return w, nil
	}
	defer u.release()
	if waits {
		// Nothing waits here any more, and its client would ask again at once if told that it waits. Not where this request has made the
		// entry: a refusal by draining says that nothing was changed.
		return nil, draining()
	}
	return w.asked()
}

// asked is the answer of the store that ask has got: where the ticket does not queue, what is not held is not in the queue.
func (w *lockWait) asked() (any, error) {
	if w.lock.noWait && w.err == nil && w.reply.State == httpapi.Waiting {
		w.session.mu.Lock()
		w.session.dropLocked(w.lock)
		w.session.mu.Unlock()
		w.reply.State = httpapi.Busy
	}
	return w.result()
}

// wait waits for a change of a lock that is in the queue. Of one that is held, the answer that said so was lost; and of one of which the
// store has answered nothing it is unknown whether it is in the queue: the request to acquire may have ended, overtaken by this
// one, before it was sent, or when its entry was made. A ticket has nothing to wait by then. So both ask the store.
func (s *session) wait(client context.Context, l *lock, wait time.Duration) (any, error) {
	u, err := s.take(client, l)
	if err != nil {
		return nil, err
	}
	w := &lockWait{use: u, session: s, lock: l, until: time.Now().Add(wait)}
	s.mu.Lock()
	waits := l.confirmed && !l.uncertain && !l.held
	s.mu.Unlock()
	if waits {
		return w, nil
	}
	defer u.release()
	w.ask()
	return w.asked()
}

func answer(l *lock, v driver.Verdict) httpapi.Lock {
	a := httpapi.Lock{
		State: httpapi.Waiting, Entry: l.entry, Retry: v.Retry.Milliseconds(), Holder: v.Holder, Quarantine: v.Quarantine.Milliseconds(),
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
		s.dropLocked(l)
		if err == nil {
			s.numbers.release(number)
		}
		s.mu.Unlock()
	}
	return err
}
