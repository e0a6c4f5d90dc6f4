package drivertest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// call names a method of the contract.
type call string

const (
	callOpen      call = "Open"
	callKeepAlive call = "KeepAlive"
	callEnqueue   call = "Enqueue"
	callWait      call = "Wait"
	callLeave     call = "Leave"
	callPublish   call = "Publish"
	callClose     call = "Close"
	callList      call = "List"
	callWatch     call = "Watch" // what a watch tells
)

// interceptor is between the core and a driver. Calls pass through it to the real store and back; a
// test may count them, falsify answers, and withhold both directions like a broken network.
//
// It hides the driver's optional interfaces except Publisher; tests of those use a plain
// client.
type interceptor struct {
	driver.Backend
	store        link         // Open
	disturbances atomic.Int64 // how often a test has interfered with the calls

	mu       sync.Mutex
	sessions []*interceptedSession
	before   func(call) error              // instead of the call, if it returns an error
	after    func(c call, err error) error // replaces the answer of the store
	calls    map[call]int
}

func newInterceptor(b driver.Backend) *interceptor {
	return &interceptor{Backend: b, calls: map[call]int{}}
}

// spoil sets what happens before and after each call; nil for nothing.
func (p *interceptor) spoil(before func(call) error, after func(call, error) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
	p.disturbances.Add(1)
}

// count returns how often the calls have come back from the driver so far.
func (p *interceptor) count(calls ...call) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, c := range calls {
		n += p.calls[c]
	}
	return n
}

// allCalls are those that reach the store, or may.
var allCalls = []call{callOpen, callKeepAlive, callEnqueue, callWait, callLeave, callPublish, callClose, callList, callWatch}

// counted counts a call that no test withholds.
func (p *interceptor) counted(c call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[c]++
}

// List is counted, and never withheld.
func (p *interceptor) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	p.counted(callList)
	return p.Backend.List(ctx, name, limit)
}

// cut withholds every request and every answer from now on.
func (p *interceptor) cut() {
	p.disturbances.Add(1)
	p.store.cut()
	for _, s := range p.opened() {
		s.cut()
	}
}

// heal delivers again, including everything withheld: late answers are part of the test.
func (p *interceptor) heal() {
	p.disturbances.Add(1)
	p.store.heal()
	for _, s := range p.opened() {
		s.heal()
	}
}

// healStore lets new sessions be opened while earlier ones stay cut off, so that their entries stay
// in the store until the store removes them.
func (p *interceptor) healStore() { p.store.heal() }

func (p *interceptor) opened() []*interceptedSession {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions
}

// through makes one call over a link.
func (p *interceptor) through(ctx context.Context, l *link, c call, fn func() error) error {
	if err := l.pass(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	before := p.before
	p.mu.Unlock()
	if before != nil {
		if err := before(c); err != nil {
			return err
		}
	}
	err := fn()
	p.mu.Lock()
	p.calls[c]++
	after := p.after
	p.mu.Unlock()
	if after != nil {
		err = after(c, err)
	}
	if lost := l.pass(ctx); lost != nil {
		return lost
	}
	return err
}

// link is a connection that can be cut. The zero value works.
type link struct {
	mu     sync.Mutex
	broken chan struct{} // non-nil while cut, closed when healed
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil {
		l.broken = make(chan struct{})
	}
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		close(l.broken)
		l.broken = nil
	}
}

// pass returns when the link is connected, or with the error of ctx.
func (l *link) pass(ctx context.Context) error {
	l.mu.Lock()
	broken := l.broken
	l.mu.Unlock()
	if broken == nil {
		return nil
	}
	select {
	case <-broken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken == nil
}

// Open opens a session on a separate link.
func (p *interceptor) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s := &interceptedSession{interceptor: p}
	gone := o.Gone
	o.Gone = func(id string, err error) {
		if s.connected() { // otherwise the message is lost, as in a network
			gone(id, err)
		}
	}
	var granted time.Duration
	err := p.through(ctx, &p.store, callOpen, func() (err error) {
		s.Session, granted, err = p.Backend.Open(ctx, o)
		return err
	})
	if err != nil {
		if s.Session != nil { // it was opened, and only the answer is lost
			_ = s.Session.Close(context.WithoutCancel(ctx)) // the store's expiry is the safety net
		}
		return nil, 0, err
	}
	p.mu.Lock()
	p.sessions = append(p.sessions, s)
	p.mu.Unlock()
	return s, granted, nil
}

type interceptedSession struct {
	driver.Session
	link
	interceptor *interceptor
}

func (s *interceptedSession) KeepAlive(ctx context.Context) (granted time.Duration, err error) {
	err = s.interceptor.through(ctx, &s.link, callKeepAlive, func() (err error) {
		granted, err = s.Session.KeepAlive(ctx)
		return err
	})
	return granted, err
}

func (s *interceptedSession) Close(ctx context.Context) error {
	return s.interceptor.through(ctx, &s.link, callClose, func() error { return s.Session.Close(ctx) })
}

func (s *interceptedSession) Ticket(r driver.Request) driver.Ticket {
	t := interceptedTicket{Ticket: s.Session.Ticket(r), session: s}
	if p, ok := t.Ticket.(driver.Publisher); ok {
		return &interceptedPublisher{t, p}
	}
	return &t
}

type interceptedTicket struct {
	driver.Ticket
	session *interceptedSession
}

func (t *interceptedTicket) verdict(ctx context.Context, c call, fn func(context.Context) (driver.Verdict, error)) (driver.Verdict, error) {
	var v driver.Verdict
	err := t.session.interceptor.through(ctx, &t.session.link, c, func() (err error) {
		v, err = fn(ctx)
		return err
	})
	if err != nil {
		return driver.Verdict{}, err
	}
	return v, nil
}

func (t *interceptedTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	return t.verdict(ctx, callEnqueue, t.Ticket.Enqueue)
}

func (t *interceptedTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	return t.verdict(ctx, callWait, t.Ticket.Wait)
}

func (t *interceptedTicket) Leave(ctx context.Context) error {
	return t.session.interceptor.through(ctx, &t.session.link, callLeave, func() error { return t.Ticket.Leave(ctx) })
}

type interceptedPublisher struct {
	interceptedTicket
	publisher driver.Publisher
}

func (t *interceptedPublisher) Publish(ctx context.Context, value []byte) error {
	return t.session.interceptor.through(ctx, &t.session.link, callPublish, func() error { return t.publisher.Publish(ctx, value) })
}

// losing returns a function that replaces the first few successful answers of a call by
// errLostAnswer, and how often it has done so.
func losing(which call, times int) (after func(call, error) error, lost *atomic.Int32) {
	lost = new(atomic.Int32)
	return func(c call, err error) error {
		if c != which || err != nil {
			return err
		}
		for n := lost.Load(); n < int32(times); n = lost.Load() {
			if lost.CompareAndSwap(n, n+1) {
				return errLostAnswer
			}
		}
		return nil
	}, lost
}
