package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// givenUp is a context that ends right after a request was begun: when its end is waited for
// the second time, the first being the wait for a connection.
type givenUp struct {
	context.Context
	waits atomic.Int32
	ended chan struct{}
}

func giveUp(parent context.Context) *givenUp {
	c := &givenUp{Context: parent, ended: make(chan struct{})}
	close(c.ended)
	return c
}

func (c *givenUp) Done() <-chan struct{} {
	if c.waits.Add(1) < 2 {
		return c.Context.Done()
	}
	return c.ended
}

func (c *givenUp) Err() error {
	if c.waits.Load() < 2 {
		return c.Context.Err()
	}
	return context.Canceled
}

// A value whose publication was given up never replaces one that was published after it and
// confirmed: the goroutine that writes the first may be scheduled after the second's. Without
// versions about every second round failed here.
func TestLatePublish(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	for _, o := range []*Options{nil, {Strategy: StrategyNode, Root: "/late-node"}} {
		b := patient(t, o, z.Addr)
		name := uniqueName(t)
		k := openSession(t, b, calm).Ticket(testkit.RequestAs(name, "leader"))
		if _, err := k.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
		publish := k.(driver.Publisher).Publish
		for i := range 200 {
			if err := publish(giveUp(t.Context()), []byte("late")); !errors.Is(err, context.Canceled) && err != nil {
				t.Fatal(err)
			}
			value := fmt.Sprint("value ", i)
			if err := publish(t.Context(), []byte(value)); err != nil {
				t.Fatal(err)
			}
			es, err := b.List(t.Context(), name, 1)
			if err != nil || len(es) != 1 || string(es[0].Value) != value {
				t.Fatalf("round %d: confirmed %q, listed %+v, %v", i, value, es, err)
			}
		}
		if err := k.Leave(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// The control: the value of a publication whose answer was lost is the older one, and the next
// replaces it all the same; and so it does when an administrator has written.
func TestPublishAfterUnknown(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	d := openSession(t, s.b, calm)
	k := d.Ticket(testkit.RequestAs(name, "leader")).(*ticket)
	if _, err := k.Enqueue(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := admin(t, z)
	for i, before := range []func(){
		func() {
			answerLost(t, s, onLock(5), func() {
				if err := k.Publish(t.Context(), []byte("unknown")); err == nil {
					t.Error("published, and the answer has arrived")
				}
			})
		},
		func() {
			if _, err := a.Set(k.node, []byte("{}"), -1); err != nil {
				t.Fatal(err)
			}
		},
	} {
		before()
		if err := k.Publish(t.Context(), []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if es := s.entries(t, name); len(es) != 1 || len(es[0].Value) != 1 || es[0].Value[0] != byte(i) {
			t.Errorf("listed %+v", es)
		}
	}
	if err := k.Leave(t.Context()); err != nil {
		t.Error(err)
	}
}
