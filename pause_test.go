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
	looks := map[string]func(l *Lease, ctx context.Context) bool{
		"Held": func(l *Lease, _ context.Context) bool { return !l.Held() },
		"Err":  func(l *Lease, _ context.Context) bool { return l.Err() != nil },
		"Lost": func(l *Lease, _ context.Context) bool { return closed(l.Lost()) },
		"Context.Err": func(_ *Lease, ctx context.Context) bool {
			return ctx.Err() != nil && context.Cause(ctx) != context.Canceled
		},
		"Context.Done": func(_ *Lease, ctx context.Context) bool { return closed(ctx.Done()) },
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
			if tells(l, ctx) {
				t.Errorf("%s of %s tells a loss before there is one", name, kind)
			}
		}
		of := map[string]context.Context{
			"lease": l.Context(), "several leases": m.Context(), "a bound lease": l.Bind(t.Context()), "several bound": m.Bind(t.Context()),
		}
		s := l.entry.session
		s.mu.Lock()
		s.timer.Stop()
		s.sent.at, s.sent.boot = s.sent.at.Add(-time.Hour), s.sent.boot-time.Hour
		s.mu.Unlock()
		for kind, ctx := range of {
			if !tells(l, ctx) {
				t.Errorf("%s of %s does not tell the loss at the first look", name, kind)
			}
		}
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
