package testkit

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Quarantined refuses every try, as a Redis does that may have forgotten locks. For all else it is
// the backend.
type Quarantined struct {
	driver.Backend
	Only string       // the one name that it refuses; "": all
	Left atomic.Int64 // for how long, in nanoseconds; 0: it refuses none
}

// Open implements driver.Backend.
func (b *Quarantined) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, d, err := b.Backend.Open(ctx, o)
	return quarantinedSession{s, b}, d, err
}

type quarantinedSession struct {
	driver.Session
	b *Quarantined
}

func (s quarantinedSession) Ticket(r driver.Request) driver.Ticket {
	t := s.Session.Ticket(r)
	if !r.NoWait || s.b.Only != "" && s.b.Only != r.Name {
		return t
	}
	return quarantinedTry{t, s.b}
}

type quarantinedTry struct {
	driver.Ticket
	b *Quarantined
}

func (t quarantinedTry) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if left := t.b.Left.Load(); left > 0 {
		return driver.Verdict{Quarantine: time.Duration(left)}, nil
	}
	return t.Ticket.Enqueue(ctx)
}
