package httplock

import (
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

// session is a session at the server, and the one at the store that belongs to it.
type session struct {
	b       *backend
	options driver.SessionOptions
	id      string
	can     []string // what its tickets can

	done context.Context // ends with the session
	stop context.CancelCauseFunc

	mu      sync.Mutex
	last    uint64             // number of the newest ticket that was sent
	tickets map[uint64]*ticket // by number: those that were sent, and not left
	polling bool
	ended   bool // closed, and the server has confirmed it
}

var errClosed = fmt.Errorf("%w: the session is closed", driver.ErrGone)

func newSession(b *backend, o driver.SessionOptions, a httpapi.Session) *session {
	s := &session{b: b, options: o, id: a.Session, can: a.Can, tickets: map[uint64]*ticket{}}
	s.done, s.stop = context.WithCancelCause(context.Background())
	return s
}

// KeepAlive goes through the server to the store and back. The answer is the time that the store has
// granted, counted from before the server asked it: from before this call, that is a little less.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if s.done.Err() != nil {
		return 0, errClosed
	}
	var a httpapi.Alive
	err := s.call(ctx, request{method: http.MethodPost, path: "/v1/session/keepalive"}, &a)
	if err != nil {
		return 0, err
	}
	s.lose(a.Lost)
	granted, err := valid(a.Valid)
	if err != nil || a.Error == "" {
		return granted, err
	}
	partial := &driver.PartialRenewal{Granted: granted, Late: map[string]time.Duration{}, Err: errors.New(a.Error)}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, late := range a.Late {
		if t := s.tickets[late.Lock]; t != nil {
			partial.Late[t.r.ID] = time.Duration(late.Valid) * time.Millisecond
		}
	}
	return 0, partial
}

// Ticket prepares an entry.
func (s *session) Ticket(r driver.Request) driver.Ticket {
	return (&ticket{s: s, r: r}).withAbilities(s.can)
}

// Close has the server close the session at the store. Its waiters are told before that.
func (s *session) Close(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.stop(errClosed)
	err := s.b.call(ctx, request{method: http.MethodDelete, path: "/v1/session", session: s.id}, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = s.ended || err == nil
	for _, t := range s.tickets {
		t.unnameLocked()
	}
	return err
}

// call makes a request of the session, and tells the core if that has ended.
func (s *session) call(ctx context.Context, r request, into any) error {
	r.session = s.id
	err := s.b.call(ctx, r, into)
	if sessionGone(err) && s.done.Err() == nil {
		s.options.Gone("", err)
	}
	return err
}

// send registers a ticket before its first request leaves: a loss that overtakes the answer finds it.
func (s *session) send(t *ticket) (number uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.done.Err() != nil:
		return 0, errClosed
	case t.left || t.lost != nil:
		return 0, t.gone()
	case t.number == 0:
		s.last++
		t.number = s.last
		s.tickets[t.number] = t
	}
	if !s.polling {
		s.polling = true
		go s.poll() // ends with the session, or with the backend
	}
	return t.number, nil
}

// poll asks for losses, one request after the other: each answer is told at once.
func (s *session) poll() {
	const long = 20 * time.Second
	ctx, cancel := context.WithCancel(s.done)
	defer cancel()
	defer context.AfterFunc(s.b.closed, cancel)()
	pause := time.Duration(0)
	for seen := uint64(0); ; {
		var e httpapi.Events
		began := time.Now()
		err := s.call(ctx, request{
			method: http.MethodGet, path: "/v1/session/events", wait: long,
			query: url.Values{"after": {strconv.FormatUint(seen, 10)}, "wait_ms": {strconv.FormatInt(long.Milliseconds(), 10)}},
		}, &e)
		switch {
		case ctx.Err() != nil || errors.Is(err, driver.ErrGone):
			return
		case err == nil && (len(e.Lost) > 0 || time.Since(began) > long/2):
			s.lose(e.Lost)
			seen, pause = e.Version, 0
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

// lose tells the core of confirmed tickets that the store has no more. One that is not confirmed yet
// is told by its request: the loss has overtaken the answer.
func (s *session) lose(all []httpapi.Lost) {
	var gone []string
	s.mu.Lock()
	for _, l := range all {
		t := s.tickets[l.Lock]
		if t == nil || t.left || t.lost != nil {
			continue
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
