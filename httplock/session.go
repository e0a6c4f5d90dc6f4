package httplock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// session is a session at a server, and the one at the store that belongs to it. It moves to
// another server when its own has forgotten it, or is about to end: see move.go.
type session struct {
	b       *backend
	options driver.SessionOptions
	can     []string // what its tickets can

	done context.Context // ends with the session
	stop context.CancelCauseFunc

	moving   chan struct{} // full while it moves; guards what follows
	next     string        // the session that it moves to
	nextLast uint64        // its newest number
	movedAt  time.Time     // the last time that it began to
	paused   time.Duration // before that

	mu      sync.Mutex
	id      string
	last    uint64             // number of the newest ticket that was sent
	tickets map[uint64]*ticket // by number: those that were sent, and not left
	polling bool
	hangUp  context.CancelFunc // of the request for events that is open; nil: there was none

	trusted time.Time // the core trusts what is held until then at the latest: see renewNext
	lasts   time.Time // the next session lasts until then, at least
	ended   bool      // closed, and the server has confirmed it
}

var errClosed = fmt.Errorf("%w: the session is closed", driver.ErrGone)

// newSession is of an opened session. trusted: as the session's.
func newSession(b *backend, o driver.SessionOptions, a httpapi.Session, trusted time.Time) *session {
	s := &session{b: b, options: o, id: a.Session, can: a.Can, moving: make(chan struct{}, 1), tickets: map[uint64]*ticket{}, trusted: trusted}
	s.done, s.stop = context.WithCancelCause(context.Background())
	return s
}

// KeepAlive goes through the server to the store and back. The answer is the time that the store
// has granted, counted from before the server asked it: from before this call, that is a little
// less.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if s.done.Err() != nil {
		return 0, errClosed
	}
	var id string
	var a httpapi.Alive
	var granted time.Duration
	for counts := false; !counts; {
		a = httpapi.Alive{}
		sent := time.Now()
		var err error
		if id, err = s.callAt(ctx, request{method: http.MethodPost, path: "/v1/session/keepalive"}, &a); err != nil {
			return 0, err
		}
		if granted, err = valid(a.Valid); err != nil {
			return 0, err
		}
		if counts = s.counts(id, sent.Add(granted)); !counts {
			if err := s.follow(ctx, id, errNextEnded); err != nil {
				return 0, err
			}
		}
	}
	s.lose(id, a.Lost)
	if a.Error == "" {
		return granted, nil
	}
	partial := &driver.PartialRenewal{Granted: granted, Late: map[string]time.Duration{}, Unanswered: map[string]bool{}, Err: errors.New(a.Error)}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, late := range a.Late {
		if t := s.tickets[late.Lock]; t != nil && id == s.id {
			partial.Late[t.r.ID] = time.Duration(late.Valid) * time.Millisecond
			if late.Unanswered {
				partial.Unanswered[t.r.ID] = true
			}
		}
	}
	return 0, partial
}

// Ticket prepares an entry.
func (s *session) Ticket(r driver.Request) driver.Ticket {
	return (&ticket{s: s, r: r, news: make(chan struct{}, 1)}).withAbilities(s.can)
}

// Close has the server close the session at the store. Its waiters are told before that.
func (s *session) Close(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.stop(errClosed)
	if err := s.startMoving(ctx); err != nil {
		return err
	}
	defer s.stopMoving()
	if s.next != "" {
		_ = s.b.closeSession(ctx, s.next) // else it expires
	}
	err := s.b.closeSession(ctx, s.where())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = s.ended || err == nil
	for _, t := range s.tickets {
		t.unnameLocked()
	}
	return err
}

// call makes a request of the session.
func (s *session) call(ctx context.Context, r request, into any) error {
	_, err := s.callAt(ctx, r, into)
	return err
}

// callAt says at which session as well. One that its server does not know moves, and the request is
// made there; or the core is told that it has ended.
//
// A release that the session has answered which the lock is leaving is made again, since another
// one may have adopted the lock before. If that one finds nothing to adopt, the release was done
// before it looked, and the answer counts.
func (s *session) callAt(ctx context.Context, r request, into any) (id string, err error) {
	released := false
	for {
		if err := s.address(&r); err != nil {
			if released && errors.Is(err, driver.ErrGone) {
				err = nil
			}
			return "", err
		}
		err := s.b.call(ctx, r, into)
		released = released || err == nil && r.method == http.MethodDelete
		counts := r.of == nil || !s.elsewhere(r.session, r.of)
		if !sessionGone(err) && counts || s.done.Err() != nil {
			return r.session, err
		}
		if why := s.follow(ctx, r.session, cmp.Or(err, errNextEnded)); why != nil {
			if err == nil && unchanged(why) { // it is the move that is refused; the request was done
				why = errors.New(why.Error())
			}
			return r.session, why
		}
	}
}

// address fills in where a request goes, which may have changed since the last attempt.
func (s *session) address(r *request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.session = s.id
	if t := r.of; t != nil {
		if t.lost != nil {
			return t.gone()
		}
		r.path = "/v1/locks/" + strconv.FormatUint(t.number, 10) + r.more
	}
	if r.bodyLocked != nil {
		r.body = r.bodyLocked()
	}
	return nil
}

// where is the session's id.
func (s *session) where() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// send registers a ticket before its first request leaves: a loss that overtakes the answer finds
// it.
func (s *session) send(t *ticket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.done.Err() != nil:
		return errClosed
	case t.left || t.lost != nil:
		return t.gone()
	case t.number == 0:
		s.last++
		t.number = s.last
		s.tickets[t.number] = t
	}
	if !s.polling {
		s.polling = true
		go s.poll() // ends with the session, or with the backend
	}
	return nil
}

// longWait is how long one request for events waits: a TTL, so that one on a dead connection does
// not keep those who wait from asking for longer.
func (s *session) longWait() time.Duration {
	return min(max(s.options.TTL, time.Second), 20*time.Second)
}

// poll asks for events, one request after the other: each answer is told at once.
func (s *session) poll() {
	long := s.longWait()
	ctx, cancel := context.WithCancel(s.done)
	defer cancel()
	defer context.AfterFunc(s.b.closed, cancel)()
	pause := time.Duration(0)
	for seen, at := uint64(0), ""; ; {
		var e httpapi.Events
		began := time.Now()
		open, hangUp := context.WithCancel(ctx)
		id := s.listens(hangUp)
		if id != at { // losses are numbered in each session: what was seen in another is no answer to this one
			seen, at = 0, id
		}
		err := s.b.call(open, request{
			method: http.MethodGet, path: "/v1/session/events", wait: long, session: id,
			query: url.Values{"after": {strconv.FormatUint(seen, 10)}, "wait_ms": {strconv.FormatInt(long.Milliseconds(), 10)}},
		}, &e)
		hangUp()
		if s.where() != id && ctx.Err() == nil {
			continue // it has moved: what another session has said does not count
		}
		if sessionGone(err) && ctx.Err() == nil {
			if err = s.follow(ctx, id, err); err == nil {
				continue
			}
		}
		switch {
		case ctx.Err() != nil || errors.Is(err, driver.ErrGone):
			return
		case err == nil && (len(e.Lost)+len(e.Changed) > 0 || time.Since(began) > long/2):
			s.lose(id, e.Lost)
			s.change(id, e.Changed)
			seen, pause = e.Version, 0
		case err == nil && e.Draining && s.moveAway(ctx, id):
			pause = 0
		case err == nil && e.Draining: // it cannot move, and this server waits for nothing any more
			s.askAgain()
			pause = min(2*pause+100*time.Millisecond, 2*time.Second)
		default: // an error, or a server that is about to end
			pause = min(2*pause+100*time.Millisecond, 2*time.Second)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// listens notes how the request for events that is about to be made can be ended, and returns of
// which session it is. A session that moves hangs up: the server that it leaves then waits for its
// locks no more, and what the next one tells is heard at once.
func (s *session) listens(hangUp context.CancelFunc) (id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangUp = hangUp
	return s.id
}

// change has those who wait look at what has become of their locks.
func (s *session) change(id string, all []httpapi.Changed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != s.id {
		return // numbers of a session that this one has left
	}
	for _, c := range all {
		t := s.tickets[c.Lock]
		if t == nil || t.left || t.lost != nil {
			continue
		}
		switch c.State {
		case httpapi.Held:
			// One that is not confirmed yet is held for the move only when its own answer has come.
			t.granted, t.holds, t.token = true, t.confirmed, c.Token
		case httpapi.Waiting:
			t.asksAgain = true
		}
		t.wake()
	}
}

// askAgain has those who wait ask the server.
func (s *session) askAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		t.asksAgain = true
		t.wake()
	}
}

// lose tells the core of confirmed tickets that the store has no more. One that is not confirmed
// yet is told by its request: the loss has overtaken the answer.
func (s *session) lose(id string, all []httpapi.Lost) {
	var gone []string
	s.mu.Lock()
	if id != s.id {
		all = nil // numbers of a session that this one has left
	}
	for _, l := range all {
		t := s.tickets[l.Lock]
		if t == nil || t.left || t.lost != nil {
			continue
		}
		if t.held() && t.leavesLocked(id) {
			continue // another session has adopted it, or is about to: that one says what is lost
		}
		t.loseLocked(fmt.Errorf("%w: %s", driver.ErrGone, l.Detail))
		if t.confirmed {
			gone = append(gone, t.r.ID)
		}
	}
	s.mu.Unlock()
	for _, id := range gone {
		s.options.Gone(id, fmt.Errorf("%w: told by the server", driver.ErrGone))
	}
}
