package serve

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// A lock that waits is waited for by one goroutine, which has its turn: that of the request for as
// long as wait_ms says, and one of the server's own (follow) from then on. What that one learns is
// told by the session's events. So a client with a hundred waiting locks has one request open, and
// a client that repeats its PUT ends the server's wait and takes the turn.
//
// Rejected: to start follow when the client asks for it. A lock in the queue is granted whether
// a request waits or not, and its client should hear of it.

// waiter waits for a lock that is in the queue. It has the lock's turn.
type waiter struct {
	*use
	session *session
	lock    *lock
	answer  httpapi.Lock
	again   time.Time // when the store wants to be asked; zero: it tells
}

// acquire asks the store and, for as long as the request says, waits. What is not held then stays
// in the queue, and is followed.
//
// Whether it queues at all is for the first request to say, by which the ticket was made. A
// repeated one that says something else changes nothing: a place in the queue is not forgotten here
// while the store keeps it, and a ticket that does not queue is not waited for.
func (s *session) acquire(client context.Context, l *lock, wait time.Duration) (httpapi.Lock, error) {
	u, err := s.take(client, l)
	if err != nil {
		return httpapi.Lock{}, err
	}
	w := &waiter{use: u, session: s, lock: l}
	s.mu.Lock()
	before := l.confirmed || l.uncertain
	s.mu.Unlock()
	held, err := w.ask()
	if err == nil && !held && l.noWait {
		// Nothing is left in the store.
		s.mu.Lock()
		s.dropLocked(l)
		s.mu.Unlock()
		w.answer.State = httpapi.Busy
		held = true
	}
	if err != nil || held {
		u.release()
		return w.answer, err
	}
	held, err = w.wait(time.Now().Add(wait))
	if !held && err == nil && wait > 0 && before && s.server.isDraining() {
		// Its client would ask again at once if told that it waits. Not where this request has made
		// the entry: a refusal by draining says that nothing was changed.
		err = draining()
	}
	if held || err != nil && client.Err() == nil {
		u.release()
		return w.answer, err
	}
	if !u.detach() { // the client has gone, and has ended the use with it
		u.release()
		return httpapi.Lock{}, context.Cause(client)
	}
	answer := w.answer // what follow learns from here on is told by the events
	s.server.background.Go(w.follow)
	return answer, nil
}

// errEventsCut ends the server's waits for a client that has cut off its request for events, or sends
// none.
var errEventsCut = errors.New("its client does not ask for events any more")

// follow waits for as long as no request does, and has the session's events tell what comes of it.
//
// Where the store has no queue, it gives the wait up when the client cuts off its request for
// events: the client may have moved to another server. No entry shows that it waits here, so it
// cannot end this wait from there. A server that waited on would take the free lock for a client
// that has gone, and keep it for a TTL, again and again. A client that is still here queues again.
// It may have moved before its first request for events, too: so the wait begins with that request,
// and an entry for which none comes within a TTL is removed, since the store may wake it in place of
// another. And it may have moved between two of them: see eventsOver.
func (w *waiter) follow() {
	defer w.release()
	defer w.session.server.survive(func() string { return "the wait for a lock" }, func() { w.session.report(w.lock, httpapi.Lock{State: httpapi.Waiting}) })
	w.session.noteServerWait(w)
	if !w.session.server.o.Store.Traits().FIFO {
		select {
		case <-w.session.eventsBegun:
		case <-time.After(w.session.ttl):
			w.end(errEventsCut)
		case <-w.ctx.Done():
		case <-w.session.server.drain.Done():
		}
	}
	held, err := w.wait(time.Time{})
	switch {
	case held:
		w.session.report(w.lock, w.answer)
	case context.Cause(w.ctx) == errEventsCut:
		ctx, cancel := context.WithTimeout(w.session.server.over, storeAnswer)
		defer cancel()
		_ = w.lock.ticket.Leave(ctx) // what it may have taken; else that goes with the session
		w.session.gone(w.lock.entry, errEventsCut)
	case errors.Is(err, driver.ErrGone): // also of a session that has ended, of which nothing is told
		w.session.gone(w.lock.entry, err)
	case err != nil && w.ctx.Err() == nil:
		w.session.report(w.lock, httpapi.Lock{State: httpapi.Waiting}) // ask again: the answer says why
	}
}

// noteServerWait notes who waits for the lock, or ends that wait if its client stopped to listen.
func (s *session) noteServerWait(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.lock.serverWait = w.use
	if s.eventsCut {
		w.end(errEventsCut)
	}
}

// ask makes the entry, or asks for it, and reports whether it is held.
func (w *waiter) ask() (held bool, err error) {
	var v driver.Verdict
	bound := silence
	if w.lock.noWait {
		bound = w.session.longestTry()
	}
	err = w.session.step(w.use, bound, func(ctx context.Context) error {
		v, err = w.lock.ticket.Enqueue(ctx)
		v, err = w.note(v, err, true)
		return err
	})
	if err == nil {
		w.take(v)
	}
	return v.Held, err
}

// longestTry is how long the store may take for a try. Where it has no clock a holder that looks
// dead is observed for its TTL, if that is at most the client's, before a try is refused or granted
// (driver.Verdict.LooksOver).
func (s *session) longestTry() time.Duration { return silence + s.ttl + s.ttl/100 }

// note is that of the session, which learns of no grant that the token may not have.
func (w *waiter) note(v driver.Verdict, err error, entered bool) (driver.Verdict, error) {
	if err == nil && v.Held && w.session.refuseGrant(w.lock) {
		return driver.Verdict{}, w.session.mayNot(w.lock.name)
	}
	return w.session.note(w.lock, v, err, entered)
}

// take notes the store's answer.
func (w *waiter) take(v driver.Verdict) {
	w.answer, w.again = answer(w.lock, v), time.Time{}
	if v.Retry > 0 {
		w.again = time.Now().Add(v.Retry)
	}
}

// wait waits until the lock is held, until its time is over (zero: never), or until the server
// drains; the last two are no error. It asks the store whenever that may have changed its answer.
func (w *waiter) wait(until time.Time) (held bool, err error) {
	for err == nil && !held && !w.session.server.isDraining() && (until.IsZero() || time.Now().Before(until)) {
		bound := earlier(until, w.again)
		if held, err = w.news(bound); err == nil && !held && (bound.IsZero() || !time.Now().Before(bound)) && bound.Equal(w.again) {
			held, err = w.ask()
		}
	}
	return held, err
}

// earlier is the first of two moments, of which a zero one never comes.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// news waits for a change that the store tells of, until a moment comes or the server drains.
func (w *waiter) news(until time.Time) (held bool, err error) {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	if !until.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	defer context.AfterFunc(w.session.server.drain, cancel)()
	v, err := w.lock.ticket.Wait(ctx)
	// A connection of the store's driver may notice the deadline before the timer here does.
	if isContext(err) && (ctx.Err() != nil || !until.IsZero() && !time.Now().Before(until)) {
		if w.ctx.Err() != nil {
			return false, w.session.ended(context.Cause(w.ctx))
		}
		return false, nil
	}
	if v, err = w.note(v, err, false); err != nil {
		return false, w.session.ended(err)
	}
	w.take(v)
	return v.Held, nil
}
