package mysqllock_test

import (
	"context"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // for pool

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	_ "github.com/hasplock/hasp/mysqllock"
)

// T is the TTL of clients whose leases shall expire, calm of those whose leases shall last on a
// busy machine, and slack the time to wait for an event that must come.
const (
	T     = 2 * time.Second
	calm  = 20 * time.Second
	slack = testkit.Patience
)

func client(t testing.TB, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	return testkit.Client(t, storeURL, append([]hasp.Option{hasp.WithTTL(calm)}, opts...)...)
}

func ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*slack)
	t.Cleanup(cancel)
	return ctx
}
