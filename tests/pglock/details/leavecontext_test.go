package pglock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// countedContext ends when it has been looked at so many times.
type countedContext struct {
	context.Context
	left atomic.Int64
	end  context.CancelFunc
}

func newCountedContext(parent context.Context, looks int64) *countedContext {
	c := &countedContext{}
	c.Context, c.end = context.WithCancel(parent)
	c.left.Store(looks)
	return c
}

func (c *countedContext) look() {
	if c.left.Add(-1) == 0 {
		c.end()
	}
}

func (c *countedContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (c *countedContext) Err() error {
	c.look()
	return c.Context.Err()
}

// The context of a release ends at any step. A lock that was held until then is never called lost:
// it was, where the context ended just before the request was sent.
func TestReleaseWhoseContextEnds(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, _ := opened(t, sqlkit.With(server.URL(), "strategy=advisory"), calm)
	ended := 0
	for looks := range int64(20) {
		ticket := s.Ticket(mutex("a"))
		testkit.Held(t, ticket)
		ctx := newCountedContext(testkit.Context(t), looks+1)
		err := ticket.Leave(ctx)
		switch {
		case errors.Is(err, driver.ErrGone):
			t.Errorf("after %d looks: a lock that is held is called lost: %v", looks+1, err)
		case errors.Is(err, context.Canceled):
			ended++
		}
		ctx.end()
		testkit.Until(t, "the release", func() error {
			if err := ticket.Leave(t.Context()); !errors.Is(err, driver.ErrGone) {
				return err
			}
			return nil
		})
	}
	if ended == 0 {
		t.Errorf("no context has ended in time: this has shown nothing")
	}
}
