package mysqllock_test

import (
	"context"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A watch that waits for longer and longer between its looks still tells of what happens, of
// expiry too, which is not reported to it; and it ends with its context.
func TestWatch(t *testing.T) {
	t.Parallel()
	base := sqlkit.With(sqlkit.MariaDBStore(t, backends.SharedMariaDB(t)), "prefix=watch_")
	b := testkit.Open(t, base)
	defer b.Close()
	all, cancel := context.WithCancel(ctx(t))
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- b.(driver.Watcher).Watch(all, "watched", func() {
			select {
			case changed <- struct{}{}:
			default: // one that is not taken yet stands for both
			}
		})
	}()
	tells := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case err := <-ended:
			t.Fatalf("%s: the watch broke: %v", what, err)
		case <-time.After(slack):
			t.Fatalf("%s: not told", what)
		}
	}
	quiet := func(what string) {
		t.Helper()
		select {
		case <-changed:
			t.Errorf("%s: told of a change", what)
		case <-time.After(time.Second):
		}
	}
	tells("a new watch")
	quiet("an idle name")
	c := client(t, base, hasp.WithTTL(calm))
	l := testkit.Lock(t, c, "watched")
	tells("a holder")
	quiet("a holder that renews nothing yet")
	testkit.Release(t, testkit.Lock(t, c, "another"))
	quiet("another name")
	testkit.Release(t, l)
	tells("a release")
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: T, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ticket(request("watched", "dies")).Enqueue(ctx(t)); err != nil {
		t.Fatal(err)
	}
	tells("an entry")
	tells("its death") // it is not renewed
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Errorf("a watch whose context ended: %v", err)
	}
}
