package broken

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// mistake is a flaw added to any driver. A nil field is correct. The optional abilities of a
// backend are hidden: no flaw here is about them.
type mistake struct {
	driver.Backend
	untold    bool // of the loss of an entry, the core is not told
	unrenewed bool // KeepAlive says that all is well, and has not asked
	ticket    func(driver.Session, driver.Request) driver.Ticket
}

func (m *mistake) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if told := o.Gone; m.untold {
		o.Gone = func(id string, err error) {
			if id == "" { // the session itself
				told(id, err)
			}
		}
	}
	s, granted, err := m.Backend.Open(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	return &mistaken{s, m, granted}, granted, nil
}

type mistaken struct {
	driver.Session
	m       *mistake
	granted time.Duration
}

func (s *mistaken) KeepAlive(ctx context.Context) (time.Duration, error) {
	if s.m.unrenewed {
		return s.granted, nil
	}
	return s.Session.KeepAlive(ctx)
}

func (s *mistaken) Ticket(r driver.Request) driver.Ticket {
	if s.m.ticket == nil {
		return s.Session.Ticket(r)
	}
	return s.m.ticket(s.Session, r)
}

// Liar says that it has renewed, has not asked, and does not want to know: the cached flag.
func Liar(b driver.Backend) driver.Backend {
	return &mistake{Backend: b, untold: true, unrenewed: true}
}

// Deaf sleeps through its turn: a waiter hears nothing, and does not ask by itself.
func Deaf(b driver.Backend) driver.Backend {
	return &mistake{Backend: b, ticket: func(s driver.Session, r driver.Request) driver.Ticket {
		return &incurious{s.Ticket(r), func(ctx context.Context, _ driver.Ticket) (driver.Verdict, error) {
			<-ctx.Done()
			return driver.Verdict{}, ctx.Err()
		}}
	}}
}

// Incurious relies on what it hears: a waiter does not ask by itself whether it missed anything.
func Incurious(b driver.Backend) driver.Backend {
	return &mistake{Backend: b, ticket: func(s driver.Session, r driver.Request) driver.Ticket {
		return &incurious{s.Ticket(r), func(ctx context.Context, t driver.Ticket) (driver.Verdict, error) { return t.Wait(ctx) }}
	}}
}

type incurious struct {
	driver.Ticket
	wait func(context.Context, driver.Ticket) (driver.Verdict, error)
}

func (t *incurious) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.Ticket.Enqueue(ctx)
	v.Retry = 0
	return v, err
}

func (t *incurious) Wait(ctx context.Context) (driver.Verdict, error) {
	v, err := t.wait(ctx, t.Ticket)
	v.Retry = 0
	return v, err
}

// Renaming asks again under a new ID after an answer that it did not get.
func Renaming(b driver.Backend) driver.Backend {
	return &mistake{Backend: b, ticket: func(s driver.Session, r driver.Request) driver.Ticket {
		return &renaming{Ticket: s.Ticket(r), session: s, request: r}
	}}
}

type renaming struct {
	driver.Ticket
	session driver.Session
	request driver.Request
	once    sync.Once
}

func (t *renaming) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.Ticket.Enqueue(ctx)
	if err != nil {
		t.once.Do(func() {
			t.request.ID += "-again"
			t.Ticket = t.session.Ticket(t.request)
		})
	}
	return v, err
}

// Careless leaves nothing, and says that it has.
func Careless(b driver.Backend) driver.Backend {
	return &mistake{Backend: b, ticket: func(s driver.Session, r driver.Request) driver.Ticket {
		return careless{s.Ticket(r)}
	}}
}

type careless struct{ driver.Ticket }

func (careless) Leave(context.Context) error { return nil }

// invented counts the tokens that the two below have made up, of all clients: no two are alike.
var invented atomic.Uint64

// Lawless is granted every request.
func Lawless(b driver.Backend) driver.Backend {
	return changingVerdicts(b, func(driver.Verdict) driver.Verdict {
		return driver.Verdict{Held: true, Token: invented.Add(1)}
	})
}

// Forger makes up its tokens, which fall.
func Forger(b driver.Backend) driver.Backend {
	return changingVerdicts(b, func(v driver.Verdict) driver.Verdict {
		if v.Held {
			v.Token = 1_000_000 - invented.Add(1)
		}
		return v
	})
}

// changingVerdicts changes every verdict.
func changingVerdicts(b driver.Backend, change func(driver.Verdict) driver.Verdict) driver.Backend {
	return &mistake{Backend: b, ticket: func(s driver.Session, r driver.Request) driver.Ticket {
		return &changedVerdicts{s.Ticket(r), change}
	}}
}

type changedVerdicts struct {
	driver.Ticket
	change func(driver.Verdict) driver.Verdict
}

func (t *changedVerdicts) Enqueue(ctx context.Context) (driver.Verdict, error) {
	return t.answer(t.Ticket.Enqueue(ctx))
}

func (t *changedVerdicts) Wait(ctx context.Context) (driver.Verdict, error) {
	return t.answer(t.Ticket.Wait(ctx))
}

func (t *changedVerdicts) answer(v driver.Verdict, err error) (driver.Verdict, error) {
	if err == nil {
		v = t.change(v)
	}
	return v, err
}
