package broken

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Flaws in the lifetime of entries, and in the reports about it.
var sessionControls = []Control{
	{
		Name: "removes entries earlier than it promised",
		Flaw: Flaw{open: func(b fullBackend, o driver.SessionOptions) driver.SessionOptions {
			o.TTL /= 4
			return untold(b, o)
		}},
		Seen: []string{"Loss/BeforeRegrant", "Loss/Permits"},
	},
	{
		Name: "never tells a loss",
		Flaw: Flaw{
			open:    untold,
			session: func(_ fullBackend, _ driver.SessionOptions, s driver.Session) driver.Session { return &cheerful{s} },
		},
		Seen: []string{"Evict/Holder", "Contract/ExpiredSession"},
	},
	{
		Name: "enters again, when renewing, what is gone",
		Flaw: Flaw{session: func(_ fullBackend, o driver.SessionOptions, s driver.Session) driver.Session {
			return &recreating{Session: s, mine: map[string]*recreated{}}
		}},
		Seen: []string{"Evict/Holder"},
	},
}

// untold withholds from a session the unasked reports of the store; many stores have none.
func untold(_ fullBackend, o driver.SessionOptions) driver.SessionOptions {
	o.Gone = func(string, error) {}
	return o
}

// cheerful reports a renewal, regardless of the store's answer.
type cheerful struct{ driver.Session }

func (s *cheerful) KeepAlive(ctx context.Context) (time.Duration, error) {
	if _, err := s.Session.KeepAlive(ctx); err != nil && !errors.Is(err, driver.ErrGone) {
		return 0, err
	}
	return time.Minute, nil
}

// recreating puts entries back that it has not removed itself.
type recreating struct {
	driver.Session
	mu   sync.Mutex
	mine map[string]*recreated // by ID
}

func (s *recreating) Ticket(r driver.Request) driver.Ticket {
	return &recreated{fullTicket: s.Session.Ticket(r).(fullTicket), s: s, r: r}
}

func (s *recreating) KeepAlive(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.mine {
		if _, err := t.fullTicket.Enqueue(ctx); errors.Is(err, driver.ErrGone) {
			t.fullTicket = s.Session.Ticket(t.r).(fullTicket)
			if _, err := t.fullTicket.Enqueue(ctx); err != nil {
				return 0, err
			}
		}
	}
	return s.Session.KeepAlive(ctx)
}

type recreated struct {
	fullTicket
	s *recreating
	r driver.Request
}

func (t *recreated) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.fullTicket.Enqueue(ctx)
	if err == nil && v.Held {
		t.s.mu.Lock()
		t.s.mine[t.r.ID] = t
		t.s.mu.Unlock()
	}
	return v, err
}

func (t *recreated) Leave(ctx context.Context) error {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	delete(t.s.mine, t.r.ID)
	return t.fullTicket.Leave(ctx)
}
