package pglock_test

import (
	"database/sql"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/pglock"
)

func TestMain(m *testing.M) {
	os.Setenv("PGUSER", "postgres") // for URLs without a user, also in processes of the suite
	drivertest.Main(m)
}

func conform(t *testing.T, storeURL string, idle drivertest.Idle) {
	drivertest.Run(t, withPrograms(storeURL, 64, drivertest.Harness{
		Open:    func(t testing.TB) driver.Backend { return testkit.Open(t, storeURL) },
		URL:     storeURL,
		TTL:     T,
		Counted: testkit.Counted(storeURL),
		Idle:    idle,
	}))
}

func TestConformance(t *testing.T) {
	_, storeURL := conformanceServer(t)
	conform(t, storeURL, drivertest.Idle{})
}

// Side by side, but beside nothing else: what else there is to run in parallel waits until
// this has ended, as drivertest.Run demands. All servers run before the first of them begins:
// their connections would look like leaks.
func TestConformanceOthers(t *testing.T) {
	testtier.Long(t)
	server, _ := conformanceServer(t)
	for name, run := range map[string]func(*testing.T, *backends.Postgres){
		"TransactionPooler": conformTransactionPooler,
		"SessionPooler":     conformSessionPooler,
		"DB":                conformDB,
	} {
		t.Run(name, func(t *testing.T) { run(t, server) })
	}
}

// T is the suite's TTL.
const T = 2 * time.Second

// private is a server of the test's own.
func private(t testing.TB, config ...string) *backends.Postgres {
	t.Helper()
	return backends.StartPostgres(t, backends.PostgresOptions{Config: config})
}

// conformanceServer does not wait for the disk, which on a machine with a busy disk would be
// most of the time; what it remembers of a crash is the matter of TestRestart, on a server with
// the defaults. Some names are the same in every run of the suite, so each run has separate
// tables: these are in the schema locks.
func conformanceServer(t *testing.T) (server *backends.Postgres, storeURL string) {
	server = private(t, "fsync = off")
	sqlkit.Postgres(t, server.URL(), sqlkit.MakeKeeper)
	return server, sqlkit.AsKeeper(server.URL())
}

// One after the other: a lock is a connection here. A thousand of them, each a process of the
// server's, are more than a busy machine with two cores can attend to in time.
func TestConformanceAdvisory(t *testing.T) {
	testtier.Long(t)
	storeURL := sqlkit.PostgresStore(t, "strategy=advisory")
	drivertest.Run(t, withPrograms(storeURL, 32, drivertest.Harness{
		Open:    func(t testing.TB) driver.Backend { return testkit.Open(t, storeURL) },
		URL:     storeURL,
		TTL:     T,
		AtOnce:  100,
		Counted: testkit.Counted(storeURL),
	}))
}

// polls is for connections on which no notification arrives: the first waiter asks ten times a
// second (Options.Poll), in up to four packets.
var polls = drivertest.Idle{Waiter: 4*10*int64(3*T/time.Second) + 36}

// A pool that hands its connections out for the time of a transaction: no notifications, no
// prepared statements, no settings of ours.
func conformTransactionPooler(t *testing.T, server *backends.Postgres) {
	b := backends.StartPgBouncer(t, server, "transaction")
	t.Parallel()
	conform(t, sqlkit.With(strings.Replace(b.URL(), "postgres@", "", 1), "prefix=transaction_"), polls)
}

func conformSessionPooler(t *testing.T, server *backends.Postgres) {
	b := backends.StartPgBouncer(t, server, "session")
	// Each of the suite's many connections keeps one of the pool's.
	sqlkit.Postgres(t, strings.Replace(b.URL(), "/postgres?", "/pgbouncer?default_query_exec_mode=simple_protocol&", 1), "SET default_pool_size = 400")
	t.Parallel()
	conform(t, sqlkit.With(strings.Replace(b.URL(), "postgres@", "", 1), "prefix=session_"), drivertest.Idle{})
}

func conformDB(t *testing.T, server *backends.Postgres) {
	t.Parallel()
	drivertest.Run(t, drivertest.Harness{
		TTL:  T,
		Idle: drivertest.Idle{Waiter: 400}, // asks every 20 ms, see below
		Open: func(t testing.TB) driver.Backend {
			cfg, err := pgx.ParseConfig(server.URL())
			if err != nil {
				t.Fatal(err)
			}
			db := stdlib.OpenDB(*cfg)
			b, err := pglock.NewDB(t.Context(), db, &pglock.Options{Prefix: "db_", Poll: 20 * time.Millisecond}) // the suite has waiters all the time
			if err != nil {
				t.Fatal(err)
			}
			return closing{b, b.(driver.Watcher), b.(driver.Namer), b.(driver.Evicter), db}
		},
	})
}

// closing closes what was handed to a backend together with it.
type closing struct {
	driver.Backend
	driver.Watcher
	driver.Namer
	driver.Evicter
	db *sql.DB
}

func (c closing) Close() error {
	err := c.Backend.Close()
	if closeErr := c.db.Close(); err == nil {
		err = closeErr
	}
	return err
}

// The first four of those who wait are told their places.
func TestPlaces(t *testing.T) {
	t.Parallel()
	testkit.Places(t, testkit.Open(t, sqlkit.PostgresStore(t)), 1, 2, 3, 4, 0)
}
