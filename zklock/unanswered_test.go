package zklock

import (
	"context"
	"errors"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// The context of an Enqueue ends before its answers, and Wait is called with no Enqueue between.
// Without a list it took the queue for empty and held beside the holder; while the create was under
// way it said "gone" of a node that was then made. hasp serve calls Wait in this state when its
// client does.
func TestWaitUnanswered(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	here, beside := newSite(t, calm, nil, z), newSite(t, calm, nil, z)
	s := openSession(t, here.b, calm)
	for _, hold := range []faultnet.Direction{faultnet.Down, faultnet.Up} {
		name := uniqueName(t)
		holder := s.Ticket(testkit.RequestAs(name, name+"-holds"))
		if v, err := holder.Enqueue(t.Context()); err != nil || !v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
		k := s.Ticket(testkit.RequestAs(name, name+"-waits")).(*ticket)
		here.net[0].Set(hold, faultnet.Rule{Mode: faultnet.Hold})
		ctx, cancel := context.WithCancel(t.Context())
		entered := make(chan error, 1)
		go func() {
			_, err := k.Enqueue(ctx)
			entered <- err
		}()
		if hold == faultnet.Down {
			testkit.Eventually(t, "the node", func() bool { return len(beside.entries(t, name)) == 2 })
		} else { // what waits in the network may be a ping
			testkit.Eventually(t, "the create", func() bool {
				k.mu.Lock()
				defer k.mu.Unlock()
				return k.creating != nil
			})
		}
		cancel()
		if err := testkit.Await(t, "the end of Enqueue", entered); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if hold == faultnet.Down {
			here.net[0].Heal()
			testkit.Eventually(t, "the answer to the create", func() bool { node, _ := k.ownPath(); return node != "" })
		}
		type answer struct {
			v   driver.Verdict
			err error
		}
		got := make(chan answer, 1)
		go func() {
			v, err := k.Wait(t.Context())
			got <- answer{v, err}
		}()
		here.net[0].Heal()
		if a := testkit.Await(t, "the wait", got); a.err != nil || a.v.Held {
			t.Errorf("%s held: %+v, %v, and another holds", hold, a.v, a.err)
		}
		if err := k.Leave(t.Context()); err != nil {
			t.Errorf("%s held: leave: %v", hold, err)
		}
		if all := beside.entries(t, name); len(all) != 1 {
			t.Errorf("%s held: %+v", hold, all)
		}
		if err := holder.Leave(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
