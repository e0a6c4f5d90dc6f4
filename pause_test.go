package hasp

import (
	"context"
	"testing"
	"time"

	"github.com/hasplock/hasp/memlock"
)

// S5: a process that was stopped beyond the deadline looks before any of its timers has run.
// The timer is stopped here, and the last renewal moved back by the length of the pause.
func TestFirstLookAfterAPause(t *testing.T) {
	looks := map[string]func(m *MultiLease, l *Lease, ctx context.Context) bool{
		"Held": func(_ *MultiLease, l *Lease, _ context.Context) bool { return !l.Held() },
		"Err":  func(_ *MultiLease, l *Lease, _ context.Context) bool { return l.Err() != nil },
		"Context.Err": func(_ *MultiLease, _ *Lease, ctx context.Context) bool {
			return ctx.Err() != nil && context.Cause(ctx) != context.Canceled
		},
		"Context.Done": func(_ *MultiLease, _ *Lease, ctx context.Context) bool { return closed(ctx.Done()) },
	}
	for name, tells := range looks {
		c, err := New(memlock.New().Backend())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		m, err := LockAll(t.Context(), c.Mutex("a"), c.Mutex("b"))
		if err != nil {
			t.Fatal(err)
		}
		l := m.Leases()[0]
		for kind, ctx := range map[string]context.Context{"lease": l.Context(), "several leases": m.Context(), "bound": l.Bind(t.Context())} {
			if tells(m, l, ctx) {
				t.Errorf("%s of %s tells a loss before there is one", name, kind)
			}
		}
		of := map[string]context.Context{
			"lease": l.Context(), "several leases": m.Context(), "a bound lease": l.Bind(t.Context()), "several bound": m.Bind(t.Context()),
		}
		pauseOf(l.entry.session)
		for kind, ctx := range of {
			if !tells(m, l, ctx) {
				t.Errorf("%s of %s does not tell the loss at the first look", name, kind)
			}
		}
	}
}

// The same where the first look is the first call of Context.
func TestFirstLookAtSeveralLeases(t *testing.T) {
	c, err := New(memlock.New().Backend())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := LockAll(t.Context(), c.Mutex("a"), c.Mutex("b"))
	if err != nil {
		t.Fatal(err)
	}
	pauseOf(m.Leases()[0].entry.session)
	if !closed(m.Context().Done()) {
		t.Error("the context does not report the loss")
	}
}

// pauseOf does to a session what a pause of an hour does: no timer has run, and the last renewal is
// long ago.
func pauseOf(s *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
	s.sent.At, s.sent.Boot = s.sent.At.Add(-time.Hour), s.sent.Boot-time.Hour
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
