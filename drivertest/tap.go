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
)

// tap stands between the core and a driver. Calls pass through it to the real store and back; a
// test may count them, falsify answers, and withhold both directions like a broken network.
//
// It hides the driver's optional interfaces except Publisher; tests of those use a plain
// client.
type tap struct {
	driver.Backend
	store   line         // Open
	touched atomic.Int64 // how often a test has interfered with the calls

	mu       sync.Mutex
	sessions []*tapSession
	before   func(call) error              // instead of the call, if it returns an error
	after    func(c call, err error) error // replaces the answer of the store
	calls    map[call]int
}

func newTap(b driver.Backend) *tap {
	return &tap{Backend: b, calls: map[call]int{}}
}

// spoil sets what happens before and after each call; nil for nothing.
func (p *tap) spoil(before func(call) error, after func(call, error) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
	p.touched.Add(1)
}

// count returns how often the calls have come back from the driver so far.
func (p *tap) count(calls ...call) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, c := range calls {
		n += p.calls[c]
	}
	return n
}

// cut withholds every request and every answer from now on.
func (p *tap) cut() {
	p.touched.Add(1)
	p.store.cut()
	for _, s := range p.opened() {
		s.cut()
	}
}

// heal delivers again, including everything withheld: late answers are part of the test.
func (p *tap) heal() {
	p.touched.Add(1)
	p.store.heal()
	for _, s := range p.opened() {
		s.heal()
	}
}

// healStore lets new sessions be opened while earlier ones stay cut off, so that their entries stay
// in the store until the store removes them.
func (p *tap) healStore() { p.store.heal() }

func (p *tap) opened() []*tapSession {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions
}

// through makes one call over a line.
func (p *tap) through(ctx context.Context, l *line, c call, fn func() error) error {
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

// line is a connection that can be cut. The zero value works.
type line struct {
	mu     sync.Mutex
	broken chan struct{} // non-nil while cut, closed when healed
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil {
		l.broken = make(chan struct{})
	}
}

func (l *line) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		close(l.broken)
		l.broken = nil
	}
}

// pass returns when the line is whole, or with the error of ctx.
func (l *line) pass(ctx context.Context) error {
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

func (l *line) whole() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken == nil
}

// Open opens a session on a separate line.
func (p *tap) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s := &tapSession{tap: p}
	gone := o.Gone
	o.Gone = func(id string, err error) {
		if s.whole() { // else the message is lost, as a network would lose it
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

type tapSession struct {
	driver.Session
	line
	tap *tap
}

func (s *tapSession) KeepAlive(ctx context.Context) (granted time.Duration, err error) {
	err = s.tap.through(ctx, &s.line, callKeepAlive, func() (err error) {
		granted, err = s.Session.KeepAlive(ctx)
		return err
	})
	return granted, err
}

func (s *tapSession) Close(ctx context.Context) error {
	return s.tap.through(ctx, &s.line, callClose, func() error { return s.Session.Close(ctx) })
}

func (s *tapSession) Ticket(r driver.Request) driver.Ticket {
	t := tapTicket{Ticket: s.Session.Ticket(r), session: s}
	if p, ok := t.Ticket.(driver.Publisher); ok {
		return &tapPublisher{t, p}
	}
	return &t
}

type tapTicket struct {
	driver.Ticket
	session *tapSession
}

func (t *tapTicket) verdict(ctx context.Context, c call, fn func(context.Context) (driver.Verdict, error)) (driver.Verdict, error) {
	var v driver.Verdict
	err := t.session.tap.through(ctx, &t.session.line, c, func() (err error) {
		v, err = fn(ctx)
		return err
	})
	if err != nil {
		return driver.Verdict{}, err
	}
	return v, nil
}

func (t *tapTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	return t.verdict(ctx, callEnqueue, t.Ticket.Enqueue)
}

func (t *tapTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	return t.verdict(ctx, callWait, t.Ticket.Wait)
}

func (t *tapTicket) Leave(ctx context.Context) error {
	return t.session.tap.through(ctx, &t.session.line, callLeave, func() error { return t.Ticket.Leave(ctx) })
}

type tapPublisher struct {
	tapTicket
	publisher driver.Publisher
}

func (t *tapPublisher) Publish(ctx context.Context, value []byte) error {
	return t.session.tap.through(ctx, &t.session.line, callPublish, func() error { return t.publisher.Publish(ctx, value) })
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
