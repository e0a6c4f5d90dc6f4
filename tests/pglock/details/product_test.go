package pglock_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/pglock"
)

// What other databases say of themselves, in the words that they are known to use.
const (
	cockroach = "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27 01:53:43, go1.19.10)"
	yugabyte  = "PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 16.0.6"
)

// A database on which no lock would hold is refused when the store is opened, by a URL, by a pool
// and by database/sql. The server is a real one, with other words for version(); the control is the
// same server with its own words.
func TestProductsRefused(t *testing.T) {
	t.Parallel()
	server := backends.SharedPostgres(t)
	version := ask[string](t, server.URL(), "SELECT version()")
	for said, want := range map[string]string{cockroach: "CockroachDB", yugabyte: "YugabyteDB", version: ""} {
		addr := testkit.Rewritten(t, server.Addr, func(b []byte) { testkit.Overwrite(b, version, said) })
		storeURL := strings.Replace(server.URL(), server.Addr, addr, 1)
		db, err := sql.Open("pgx", storeURL)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		pool := poolOf(t, storeURL, nil)
		for how, open := range map[string]func() (driver.Backend, error){
			"a URL": func() (driver.Backend, error) { return pglock.Open(t.Context(), storeURL) },
			"advisory": func() (driver.Backend, error) {
				return pglock.Open(t.Context(), sqlkit.With(storeURL, "strategy=advisory"))
			},
			"a pool":       func() (driver.Backend, error) { return pglock.New(t.Context(), pool, nil) },
			"database/sql": func() (driver.Backend, error) { return pglock.NewDB(t.Context(), db, nil) },
		} {
			b, err := open()
			if err == nil {
				b.Close()
			}
			if want == "" && err != nil || want != "" && (!errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, %q: %v", how, said, err)
			}
		}
	}
}

// Aurora DSQL says that it is PostgreSQL, and is known by the name of its host.
func TestProductsRefusedByHost(t *testing.T) {
	t.Parallel()
	server := backends.SharedPostgres(t)
	pool := poolOf(t, server.URL(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.Host = "abc.dsql.us-east-1.on.aws"
		cfg.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server.Addr)
		}
	})
	if _, err := pglock.New(t.Context(), pool, nil); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "Aurora DSQL") {
		t.Error(err)
	}
}

func poolOf(t *testing.T, storeURL string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// The doctor names services that run PostgreSQL, and says that hasp was never run there.
func TestDoctorProducts(t *testing.T) {
	t.Parallel()
	plain := private(t)
	if f, found := findings(t, plain.URL())["product"]; found {
		t.Errorf("PostgreSQL: %+v", f)
	}
	sqlkit.Postgres(t, plain.URL(), "CREATE ROLE supabase_admin")
	testkit.WantFinding(t, findings(t, plain.URL()), "product", driver.Warn, "Supabase")
	sqlkit.Postgres(t, plain.URL(), "CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql RETURN '15.4.0'")
	testkit.WantFinding(t, findings(t, sqlkit.With(plain.URL(), "strategy=advisory")), "product", driver.Warn, "Aurora PostgreSQL")
	testkit.WantFinding(t, findings(t, private(t, "neon.tenant_id = 'x'").URL()), "product", driver.Warn, "Neon")
}

// Parameters of other clients are refused with what does their work here, before any connection.
func TestParametersOfOthers(t *testing.T) {
	for other, ours := range map[string]string{"pool_max_conns=4": "connections=", "search_path=app": "schema="} {
		_, err := pglock.Open(t.Context(), "postgres://localhost:1/app?"+other)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), ours) || strings.Contains(err.Error(), "refused:") {
			t.Errorf("%s: %v", other, err)
		}
	}
}
