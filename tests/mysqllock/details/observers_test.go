package mysqllock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// All that watch names through one store share one connection and its statements, and each is told
// of its name. When nothing is watched any more the connection goes back.
func TestWatchesShareAConnection(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.MariaDBStore(t, m)
	c := client(t, base)
	testkit.Release(t, testkit.Lock(t, c, "warm"))
	b := testkit.Open(t, base)
	defer b.Close()
	db := sqlkit.MariaDBAdmin(t, m)
	connections := func() int64 {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE command <> 'Daemon'")
	}
	before := connections()
	const n = 300
	all, stop := context.WithCancel(ctx(t))
	defer stop()
	var told [n]chan struct{}
	ended := make(chan error, n)
	for i := range told {
		told[i] = make(chan struct{}, 1000)
		go func() {
			ended <- b.(driver.Watcher).Watch(all, fmt.Sprint("name-", i), func() { told[i] <- struct{}{} })
		}()
	}
	hears := func(what string, i int) {
		t.Helper()
		select {
		case <-told[i]:
		case err := <-ended:
			t.Fatalf("%s: %v", what, err)
		case <-time.After(slack):
			t.Fatalf("%s: not told", what)
		}
	}
	for i := range told {
		hears(fmt.Sprint("watch ", i, " stands"), i)
	}
	if now := connections(); now > before+3 { // one, and that of the check that came first
		t.Errorf("%d connections for %d names, %d before", now, n, before)
	}
	asked := func() int64 {
		return number(t, db, "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'QUESTIONS'")
	}
	from := asked()
	time.Sleep(2 * time.Second)
	if per := (asked() - from) / 2; per > 150 {
		t.Errorf("%d statements a second for %d names", per, n)
	} else {
		t.Logf("%d statements a second for %d names", per, n)
	}
	l := testkit.Lock(t, c, "name-7")
	hears("a holder", 7)
	testkit.Release(t, l)
	hears("a release", 7)
	if len(told[8]) > 0 {
		t.Error("another name was told")
	}
	stop()
	for range n {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the end of a watch: %v", err)
		}
	}
}
