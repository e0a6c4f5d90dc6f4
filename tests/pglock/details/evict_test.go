package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// An operator ends the connection of a holder after listing it. Meanwhile the holder has given
// its lock back, and takes another on the same connection: that one must not be ended. The
// operator's request to end it is held up by the network until then.
func TestEvictionMeetsNobodyElse(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, params := range []string{"strategy=advisory", "strategy=advisory&fence=off"} {
		storeURL := sqlkit.With(server.URL(), params)
		c := client(t, storeURL)
		held := testkit.Lock(t, c, "a")
		late, slow := behindLate(t, storeURL, "pg_terminate_backend")
		operator := testkit.Open(t, slow)
		t.Cleanup(func() { operator.Close() })
		if params == "strategy=advisory" {
			listed(t, client(t, storeURL), held)
		}
		list, err := operator.List(t.Context(), "a", 0)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		evicted := make(chan error, 1)
		go func() { evicted <- operator.(driver.Evicter).Evict(testkit.Context(t), "a", list[0].ID, "") }()
		late.wait(testkit.Context(t), t)
		testkit.Release(t, held)
		// On the same connection, which lies idle.
		got := make(chan *hasp.Lease, 1)
		go func() {
			l, err := c.Mutex("b").Lock(testkit.Context(t))
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		time.Sleep(500 * time.Millisecond) // it has the lock by then, or is kept from it
		late.Deliver()
		if err := <-evicted; err != nil && !errors.Is(err, driver.ErrGone) {
			t.Errorf("%s: evict: %v", params, err)
		}
		other := testkit.Granted(t, got)
		lasts(t, other, T)
		testkit.Release(t, other)
	}
}
