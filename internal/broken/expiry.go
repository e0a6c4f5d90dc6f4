package broken

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Flaws in the removal of expired entries, and in the notification of it.
var expiryControls = []Control{
	{
		Name: "lists names whose entries have all expired",
		Flaw: (&registry{}).flaw(),
		Seen: []string{"Expiry/NotNamed"},
	},
	{
		Name: "revives by a renewal what has expired and is not removed yet",
		Flaw: Flaw{
			open: untold,
			session: func(b fullBackend, o driver.SessionOptions, s driver.Session) driver.Session {
				return &reviving{Session: s, b: b, o: o}
			},
		},
		Seen: []string{"Expiry/NotRevived"},
	},
	{
		Name: "never looks for expiries while it waits, and does not ask to be asked",
		Flaw: (&deaf{}).flaw(),
		Seen: []string{"Expiry/Told"},
	},
	{
		Name: "wakes no waiter when it downgrades",
		Flaw: (&hushed{}).flaw(),
		Seen: []string{"Holding/DowngradeTold"},
	},
}

// registry keeps every name until an entry leaves it.
type registry struct {
	mu    sync.Mutex
	names map[string]bool
}

func (c *registry) flaw() Flaw {
	return Flaw{
		ticket: func(_ fullBackend, _ driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &registered{g, c, r.Name}
		},
		names: func(b fullBackend, prefix string) (names []string) {
			_ = b.Names(context.Background(), prefix, func(n string) bool {
				names = append(names, n)
				return true
			})
			c.mu.Lock()
			defer c.mu.Unlock()
			for n := range c.names {
				if strings.HasPrefix(n, prefix) && !slices.Contains(names, n) {
					names = append(names, n)
				}
			}
			return names
		},
	}
}

type registered struct {
	fullTicket
	c    *registry
	name string
}

func (t *registered) Enqueue(ctx context.Context) (driver.Verdict, error) {
	t.c.mu.Lock()
	if t.c.names == nil {
		t.c.names = map[string]bool{}
	}
	t.c.names[t.name] = true
	t.c.mu.Unlock()
	return t.fullTicket.Enqueue(ctx)
}

func (t *registered) Leave(ctx context.Context) error {
	t.c.mu.Lock()
	delete(t.c.names, t.name)
	t.c.mu.Unlock()
	return t.fullTicket.Leave(ctx)
}

// reviving renews an entry that has expired, unless another client has used the name meanwhile, and
// so removed it.
type reviving struct {
	driver.Session
	b    fullBackend
	o    driver.SessionOptions
	mu   sync.Mutex
	mine []*revived
}

func (s *reviving) Ticket(r driver.Request) driver.Ticket {
	return &revived{fullTicket: s.Session.Ticket(r).(fullTicket), s: s, r: r}
}

func (s *reviving) KeepAlive(ctx context.Context) (time.Duration, error) {
	granted, err := s.Session.KeepAlive(ctx)
	if !errors.Is(err, driver.ErrGone) {
		return granted, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	again, granted, err := s.b.Open(ctx, s.o)
	if err != nil {
		return 0, err
	}
	s.Session = again
	for _, t := range s.mine {
		if others, err := s.b.List(ctx, t.r.Name, 1); err != nil || len(others) > 0 {
			return 0, errors.Join(err, driver.ErrGone)
		}
		t.fullTicket = again.Ticket(t.r).(fullTicket)
		if _, err := t.fullTicket.Enqueue(ctx); err != nil {
			return 0, err
		}
	}
	return granted, nil
}

type revived struct {
	fullTicket
	s *reviving
	r driver.Request
}

func (t *revived) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.fullTicket.Enqueue(ctx)
	if err == nil && v.Held {
		t.s.mu.Lock()
		defer t.s.mu.Unlock()
		if !slices.Contains(t.s.mine, t) {
			t.s.mine = append(t.s.mine, t)
		}
	}
	return v, err
}

func (t *revived) Leave(ctx context.Context) error {
	t.s.mu.Lock()
	t.s.mine = slices.DeleteFunc(t.s.mine, func(o *revived) bool { return o == t })
	t.s.mu.Unlock()
	return t.fullTicket.Leave(ctx)
}

// moment remembers when something last happened. In fake time nothing else happens then.
type moment struct {
	mu sync.Mutex
	at time.Time
}

func (m *moment) now() {
	m.mu.Lock()
	m.at = time.Now()
	m.mu.Unlock()
}

// unheard waits, and misses an event at such a moment until a session renews.
func (m *moment) unheard(ctx context.Context, g fullTicket, renewed <-chan struct{}) (driver.Verdict, error) {
	v, err := g.Wait(ctx)
	if err != nil || !v.Held {
		return v, err
	}
	time.Sleep(time.Nanosecond) // until all that happens at this moment has happened
	m.mu.Lock()
	then := time.Since(m.at) <= time.Nanosecond
	m.mu.Unlock()
	if !then {
		return v, nil
	}
	select {
	case <-renewed:
		return v, nil
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
}

// deaf hears of departures, and of expiries only when its own session is renewed, which has
// what is expired removed in passing.
type deaf struct{ moment }

func (c *deaf) flaw() Flaw {
	return Flaw{
		open: func(_ fullBackend, o driver.SessionOptions) driver.SessionOptions {
			gone := o.Gone
			o.Gone = func(id string, err error) {
				if id == "" {
					c.now()
				}
				gone(id, err)
			}
			return o
		},
		session: func(_ fullBackend, _ driver.SessionOptions, s driver.Session) driver.Session {
			return &sweeping{Session: s, swept: make(chan struct{})}
		},
		ticket: func(_ fullBackend, s driver.Session, g fullTicket, _ driver.Request) driver.Ticket {
			return &unhearing{g, func(ctx context.Context) (driver.Verdict, error) {
				return c.unheard(ctx, g, s.(*sweeping).next())
			}}
		},
	}
}

// sweeping tells of its renewals.
type sweeping struct {
	driver.Session
	mu    sync.Mutex
	swept chan struct{}
}

func (s *sweeping) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.swept
}

func (s *sweeping) KeepAlive(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	close(s.swept)
	s.swept = make(chan struct{})
	s.mu.Unlock()
	return s.Session.KeepAlive(ctx)
}

type unhearing struct {
	fullTicket
	wait func(context.Context) (driver.Verdict, error)
}

func (t *unhearing) Wait(ctx context.Context) (driver.Verdict, error) { return t.wait(ctx) }

// hushed downgrades without a word.
type hushed struct{ moment }

func (c *hushed) flaw() Flaw {
	return Flaw{ticket: func(_ fullBackend, _ driver.Session, g fullTicket, _ driver.Request) driver.Ticket {
		return &silent{unhearing{g, func(ctx context.Context) (driver.Verdict, error) { return c.unheard(ctx, g, nil) }}, c}
	}}
}

type silent struct {
	unhearing
	c *hushed
}

func (t *silent) Downgrade(ctx context.Context, units int64) error {
	t.c.now()
	return t.fullTicket.Downgrade(ctx, units)
}
