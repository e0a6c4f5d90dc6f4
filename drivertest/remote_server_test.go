package drivertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Server is the far side. Its methods are those of net/rpc.
type Server struct {
	store driver.Backend
	calls atomic.Int64

	mu       sync.Mutex
	sessions map[string]*served
	waits    map[string]context.CancelFunc
}

type served struct {
	driver.Session
	tickets map[string]driver.Ticket
}

// Ask is every request, Answer every answer.
type Ask struct {
	Session, Wait string
	TTL           time.Duration
	Request       driver.Request
}

// Answer has the error in a form that crosses the network.
type Answer struct {
	Granted time.Duration
	Verdict driver.Verdict
	Entries []driver.Entry
	Names   []string
	Gone    bool
	Found   int64 // the capacity found, of a mismatch
	Text    string
}

// fail puts an error into the answer; net/rpc's own errors are left for the connection.
func (a *Answer) fail(err error) error {
	var m *driver.MismatchError
	switch {
	case err == nil:
	case errors.As(err, &m):
		a.Found = m.Found
	case errors.Is(err, driver.ErrGone):
		a.Gone = true
	default:
		a.Text = err.Error()
	}
	return nil
}

func (s *Server) ticket(q Ask) driver.Ticket {
	s.calls.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	se := s.sessions[q.Session]
	t := se.tickets[q.Request.ID]
	if t == nil {
		t = se.Ticket(q.Request)
		se.tickets[q.Request.ID] = t
	}
	return t
}

// Open opens a session under the client's name for it.
func (s *Server) Open(q Ask, a *Answer) error {
	s.calls.Add(1)
	se, granted, err := s.store.Open(context.Background(), driver.SessionOptions{TTL: q.TTL, Gone: func(string, error) {}})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[q.Session] = &served{se, map[string]driver.Ticket{}}
	a.Granted = granted
	return a.fail(err)
}

// KeepAlive renews.
func (s *Server) KeepAlive(q Ask, a *Answer) (err error) {
	s.calls.Add(1)
	s.mu.Lock()
	se := s.sessions[q.Session]
	s.mu.Unlock()
	a.Granted, err = se.KeepAlive(context.Background())
	return a.fail(err)
}

// CloseSession closes.
func (s *Server) CloseSession(q Ask, a *Answer) error {
	s.calls.Add(1)
	s.mu.Lock()
	se := s.sessions[q.Session]
	s.mu.Unlock()
	return a.fail(se.Close(context.Background()))
}

// Enqueue enters.
func (s *Server) Enqueue(q Ask, a *Answer) (err error) {
	a.Verdict, err = s.ticket(q).Enqueue(context.Background())
	return a.fail(err)
}

// Wait waits until the client calls it off.
func (s *Server) Wait(q Ask, a *Answer) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.mu.Lock()
	s.waits[q.Wait] = cancel
	s.mu.Unlock()
	a.Verdict, err = s.ticket(q).Wait(ctx)
	s.mu.Lock()
	delete(s.waits, q.Wait)
	s.mu.Unlock()
	return a.fail(err)
}

// CallOff ends a Wait.
func (s *Server) CallOff(q Ask, _ *Answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.waits[q.Wait]; cancel != nil {
		cancel()
	}
	return nil
}

// Leave leaves.
func (s *Server) Leave(q Ask, a *Answer) error {
	return a.fail(s.ticket(q).Leave(context.Background()))
}

// Publish publishes.
func (s *Server) Publish(q Ask, a *Answer) error {
	return a.fail(s.ticket(q).(driver.Publisher).Publish(context.Background(), q.Request.Value))
}

// List lists.
func (s *Server) List(q Ask, a *Answer) (err error) {
	s.calls.Add(1)
	a.Entries, err = s.store.List(context.Background(), q.Request.Name, 0)
	return a.fail(err)
}

// Names lists names.
func (s *Server) Names(q Ask, a *Answer) error {
	s.calls.Add(1)
	return a.fail(s.store.(driver.Namer).Names(context.Background(), q.Request.Name, func(n string) bool {
		a.Names = append(a.Names, n)
		return true
	}))
}
