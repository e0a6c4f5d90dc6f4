package pglock_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A server that does not let us in, or is none: the first answer has the cause and the cure. Only
// what passes by itself is not called a wrong setting.
func TestRefusals(t *testing.T) {
	t.Parallel()
	server := private(t, "max_connections = 6")
	locked := backends.StartPostgres(t, backends.PostgresOptions{Password: "secret"})
	pool := backends.StartPgBouncer(t, server, "session")
	for _, stmt := range []string{"CREATE ROLE outsider LOGIN", "CREATE ROLE single LOGIN CONNECTION LIMIT 0", "CREATE DATABASE private", "REVOKE CONNECT ON DATABASE private FROM public",
		"CREATE DATABASE closed ALLOW_CONNECTIONS false"} {
		sqlkit.Postgres(t, server.URL(), stmt)
	}
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // ends each connection without a word
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	go func() {
		for c, err := silent.Accept(); err == nil; c, err = silent.Accept() {
			c.Close()
		}
	}()
	unused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused.Close()
	at := func(addr string) string { return "postgres://postgres:hunter2@" + addr + "/postgres?sslmode=disable" }
	check := func(what, storeURL, cure string, passes bool) {
		t.Helper()
		for _, strategy := range []string{"table", "advisory"} {
			c, err := hasp.Open(testkit.Context(t), sqlkit.With(storeURL, "strategy="+strategy))
			if err == nil {
				c.Close()
			}
			if err == nil || !strings.Contains(err.Error(), cure) || errors.Is(err, hasp.ErrInvalid) == passes ||
				strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "%!") {
				t.Errorf("%s, %s: %v; want %q, passes %t", what, strategy, err, cure, passes)
			}
		}
	}
	check("a wrong password", at(locked.Addr), "check user and password", false)
	check("no such role", strings.Replace(at(server.Addr), "postgres:hunter2", "stranger", 1), "check user and database", false)
	check("no such database", replaceDatabase(t, server.URL(), "nowhere"), "no such database", false)
	check("no right to connect", replaceDatabase(t, as(server.URL(), "outsider"), "private"), "GRANT CONNECT", false)
	check("a database that is closed", replaceDatabase(t, server.URL(), "closed"), "ALLOW_CONNECTIONS", false)
	check("a role's limit", as(server.URL(), "single"), "raise max_connections or that limit", true)
	check("a pool's user", strings.Replace(pool.URL(), "postgres@", "stranger@", 1), "a pool before the server", true)
	check("no server", at(unused.Addr().String()), "no server listens there", true)
	check("a web server", sqlkit.With(at(web.Listener.Addr().String()), "connect_timeout=1"), "no answer in time", true)
	check("no word", at(silent.Addr().String()), "without a word", true)
	check("Redis", sqlkit.With(at(strings.TrimPrefix(backends.SharedRedis(t).URL(), "redis://")), "connect_timeout=1"), "no answer in time", true)
	check("MariaDB", at(backends.SharedMariaDB(t).Addr), "no PostgreSQL server", false)
	check("MariaDB by TLS", strings.Replace(at(backends.SharedMariaDB(t).Addr), "disable", "require", 1), "is no PostgreSQL", false)
	for range 6 {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			break
		}
		defer conn.Close(t.Context())
	}
	check("no connection left", as(server.URL(), "outsider"), "raise max_connections or that limit", true)
}

// Where a URL leaves a part out, the environment has it, as with libpq; a port may be a parameter,
// and the directory of a socket a host.
func TestPartsOfURLs(t *testing.T) {
	server := backends.SharedPostgres(t)
	host, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"PGHOST": host, "PGPORT": port, "PGUSER": "postgres", "PGDATABASE": "postgres"} {
		t.Setenv(key, value)
	}
	for _, u := range []string{
		"postgres://", "postgresql://", "postgres:///", "postgres://?sslmode=disable", "postgres:///postgres", "postgres://:" + port,
		"postgres://" + host + "?port=" + port, "postgres:///?host=" + host + "&port=" + port, "postgres://" + server.Addr + "?port=1",
	} {
		c, err := hasp.Open(t.Context(), u)
		if err != nil {
			t.Errorf("%s: %v", u, err)
			continue
		}
		c.Close()
	}
	for u, want := range map[string]string{
		"postgres://u@%2Fno%2Fdir/db":               "/no/dir/.s.PGSQL." + port,
		"postgres://u@%2Fno%2Fdir:77/db":            "/no/dir/.s.PGSQL.77",
		"postgres:///db?host=/no/dir&port=78":       "/no/dir/.s.PGSQL.78",
		"postgres://u@%2Fno%2Fdir,%2Fother%2Fdir/x": "",
	} {
		if _, err := hasp.Open(t.Context(), u); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", u, err, want)
		}
	}
}

// Row level security hides rows from a role that does not own the tables: what is held would look
// free, and tables that are there as if they were not. Every use is refused by that name, whether
// it was on before the first use or came under a client at work; `hasp doctor` says so.
func TestRowLevelSecurity(t *testing.T) {
	t.Parallel()
	server := private(t)
	keeper := client(t, server.URL(), hasp.WithTTL(calm))
	held := testkit.Lock(t, keeper, "a")
	tables := ask[[]string](t, server.URL(), "SELECT array_agg(relname::text) FROM pg_class WHERE relkind = 'r' AND starts_with(relname, 'hasp_')")
	sqlkit.Postgres(t, server.URL(), "CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app")
	u := as(server.URL(), "app")
	atWork := map[string]*hasp.Client{}
	for _, strategy := range []string{"table", "advisory"} {
		atWork[strategy] = client(t, sqlkit.With(u, "strategy="+strategy), hasp.WithTTL(calm))
		testkit.Release(t, testkit.Lock(t, atWork[strategy], "b"))
	}
	for _, table := range tables {
		sqlkit.Postgres(t, server.URL(), "ALTER TABLE "+table+" ENABLE ROW LEVEL SECURITY")
	}
	for _, strategy := range []string{"table", "advisory"} {
		uses := map[string]func(c *hasp.Client) error{
			"who":  func(c *hasp.Client) error { _, err := c.Inspect(t.Context(), "a"); return err },
			"lock": func(c *hasp.Client) error { _, err := c.Mutex("a").TryLock(t.Context()); return err },
			"new": func(c *hasp.Client) error {
				_, err := c.Mutex(fmt.Sprint("new ", strategy)).TryLock(t.Context())
				return err
			},
		}
		for what, use := range uses {
			for when, c := range map[string]*hasp.Client{"first use": client(t, sqlkit.With(u, "strategy="+strategy)), "at work": atWork[strategy]} {
				if strategy == "advisory" && when == "at work" {
					continue // the server's lock table says who holds
				}
				if err := use(c); !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "row level security") {
					t.Errorf("%s, %s, %s: %v", strategy, what, when, err)
				}
			}
		}
		testkit.WantFinding(t, findings(t, sqlkit.With(u, "strategy="+strategy)), "tables", driver.Bad, "row level security")
	}
	lasts(t, held, 0)
	testkit.Release(t, held) // the owner sees all
}
