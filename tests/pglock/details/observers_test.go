package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// All that watch names through one store share one connection, each is told of its name, and a name
// whose row another program has locked holds up no other. When nothing is watched any more the
// connection ends.
func TestWatchesShareAConnection(t *testing.T) {
	t.Parallel()
	server := private(t)
	c := client(t, server.URL())
	testkit.Release(t, testkit.Lock(t, c, "warm"))
	b := testkit.Open(t, server.URL())
	defer b.Close()
	if _, _, err := b.(driver.Migrator).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Release(t, testkit.Lock(t, c, "stuck"))
	connections := func() int {
		return ask[int](t, server.URL(), "SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
	}
	before := connections()
	other := executor(t, server.URL())
	other("BEGIN; SELECT FROM hasp_names WHERE name = 'stuck' FOR UPDATE")
	const n = 60
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var told [n]chan struct{}
	ended := make(chan error, n+2)
	watch := func(name string) chan struct{} {
		c := make(chan struct{}, 1000)
		go func() { ended <- b.(driver.Watcher).Watch(ctx, name, func() { c <- struct{}{} }) }()
		return c
	}
	stuck := watch("stuck")
	for i := range told {
		told[i] = watch(fmt.Sprint("name-", i))
	}
	hears := func(what string, c chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case err := <-ended:
			t.Fatalf("%s: %v", what, err)
		case <-time.After(slack):
			t.Fatalf("%s: not told", what)
		}
	}
	for i := range told {
		hears(fmt.Sprint("watch ", i, " stands"), told[i])
	}
	if now := connections(); now > before+10 { // ours, the one that has the row, and those of the pool, which have looked for the tables
		t.Errorf("%d connections for %d names, %d before", now, n, before)
	}
	again := watch("name-7")
	hears("another of the same name", again)
	l := testkit.Lock(t, c, "name-7")
	hears("a holder", told[7])
	hears("a holder, the other", again)
	testkit.Release(t, l)
	hears("a release", told[7])
	if len(told[8]) > 0 {
		t.Error("another name was told")
	}
	if len(stuck) > 0 {
		t.Error("a name was read whose row is locked: this tests nothing")
	}
	other("COMMIT")
	hears("the name that was locked", stuck)
	stop()
	for range n + 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the end of a watch: %v", err)
		}
	}
	testkit.Eventually(t, "the connection is given back", func() bool { return connections() <= before+9 })
}
