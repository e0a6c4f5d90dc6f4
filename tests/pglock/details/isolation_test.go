package pglock_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/pglock"
)

func pgxConfig(t testing.TB, serverURL string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// L2: on a pool whose transactions are REPEATABLE READ or SERIALIZABLE two readers leave at the
// same moment. A statement that looked at the queue before it waited for the other would
// see the other's entry yet, and so neither would wake the writer, whose TTL is far away.
// The level is raised when the store is open already, as an administrator may.
func TestIsolationOfPools(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := private(t)
	pools := map[string]func() driver.Backend{
		"pgx": func() driver.Backend {
			pool, err := pgxpool.New(t.Context(), server.URL())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			b, err := pglock.New(t.Context(), pool, nil)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		"sql": func() driver.Backend {
			db := stdlib.OpenDB(*pgxConfig(t, server.URL()))
			t.Cleanup(func() { db.Close() })
			// This is about waiters that do not ask: those that ask all the time are never late.
			b, err := pglock.NewDB(t.Context(), db, &pglock.Options{Poll: 2 * slack})
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		"pooler": func() driver.Backend {
			return testkit.Open(t, backends.StartPgBouncer(t, server, "transaction").URL()+"&poll=80s")
		},
	}
	for _, level := range []string{"repeatable read", "serializable"} {
		for how, pool := range pools {
			t.Run(how+" "+level, func(t *testing.T) {
				b := pool()
				sqlkit.Postgres(t, server.URL(), "ALTER DATABASE postgres SET default_transaction_isolation = '"+level+"'")
				defer sqlkit.Postgres(t, server.URL(), "ALTER DATABASE postgres RESET default_transaction_isolation")
				leaveAtOnce(t, server, b)
			})
		}
	}
}

// leaveAtOnce has two readers leave while a writer waits, each after both have begun to.
func leaveAtOnce(t *testing.T, server *backends.Postgres, b driver.Backend) {
	name := t.Name()
	var readers []*hasp.Lease
	for range 2 {
		c := testkit.ClientOn(t, b, hasp.WithTTL(10*slack))
		l, err := c.RWMutex(name).RLock(testkit.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		readers = append(readers, l)
	}
	// The writer is another client, with a direct connection, and so is told, if any is.
	got := queued(t, server.URL(), name, hasp.WithTTL(10*slack))
	left := make(chan error, 2)
	blocked := func() int {
		return ask[int](t, server.URL(), "SELECT count(DISTINCT pid)::int FROM pg_locks WHERE NOT granted")
	}
	holds(t, server.URL(), name, func() {
		for i, l := range readers {
			go func() { left <- l.Release(testkit.Context(t)) }()
			testkit.Eventually(t, "a release that waits", func() bool { return blocked() >= i+1 })
		}
	})
	for range readers {
		if err := <-left; err != nil {
			t.Error(err)
		}
	}
	testkit.Release(t, testkit.Granted(t, got))
}
