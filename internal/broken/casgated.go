package broken

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// gated is a connection to a CASStore that counts its requests, and whose writes a test may refuse
// or hold back.
type gated struct {
	*CASStore
	gate func(ctx context.Context, text string) error
	sent atomic.Int64
}

// Gated is Harness.Gated of package drivertest.
func (s *CASStore) Gated(gate func(context.Context, string) error) (driver.Backend, func() int64) {
	g := &gated{CASStore: s, gate: gate}
	b := caslock.New(g, &caslock.Options{Retention: s.retention})
	if s.flaw.renewal == nil {
		return b, g.sent.Load
	}
	return renewing{b, s.flaw.renewal}, g.sent.Load
}

func (g *gated) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	g.sent.Add(1)
	return g.CASStore.Load(ctx, name)
}

func (g *gated) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	for {
		g.sent.Add(1)
		err := g.gate(ctx, r.Name)
		if err == nil {
			return g.CASStore.Swap(ctx, r, old)
		}
		if !g.flaw.repeats || ctx.Err() != nil {
			return caslock.Absent, err
		}
		time.Sleep(time.Millisecond)
	}
}

// renewing is a backend whose sessions are renewed in another way.
type renewing struct {
	driver.Backend
	renewal func(context.Context, driver.Session) (time.Duration, error)
}

type renewingSession struct {
	driver.Session
	renewal func(context.Context, driver.Session) (time.Duration, error)
}

func (b renewing) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return renewingSession{s, b.renewal}, granted, err
}

func (s renewingSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	return s.renewal(ctx, s.Session)
}

// renewsAgain is a renewal of all while one fails: again and again.
func renewsAgain(ctx context.Context, s driver.Session) (granted time.Duration, err error) {
	for range 40 {
		if granted, err = s.KeepAlive(ctx); err == nil {
			break
		}
	}
	return granted, err
}

// failsWhole makes the failure of one that of all.
func failsWhole(ctx context.Context, s driver.Session) (time.Duration, error) {
	granted, err := s.KeepAlive(ctx)
	if late := new(driver.PartialRenewal); errors.As(err, &late) {
		return 0, late.Err
	}
	return granted, err
}
