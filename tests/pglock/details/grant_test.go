package pglock_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/pglock/pgxfence"
)

// A role that may not create is told both steps, by locks and by fences; after the owner's migration
// with its name all of it works, and it has the rights of the page and no others.
func TestGrant(t *testing.T) {
	t.Parallel()
	server := private(t)
	sqlkit.Postgres(t, server.URL(), "CREATE ROLE hasp_app LOGIN; REVOKE CREATE ON SCHEMA public FROM public; ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC") // as Supabase does
	app := as(server.URL(), "hasp_app")
	fence, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		t.Fatal(err)
	}
	pgxFence, err := pgxfence.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", app)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := pgx.Connect(t.Context(), app)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	uses := map[string]func() error{
		"table":    func() error { return lockAndList(t, app) },
		"advisory": func() error { return lockAndList(t, sqlkit.With(app, "strategy=advisory")) },
		"sqlfence": func() error { return fence.EnsureTable(t.Context(), db) },
		"pgxfence": func() error { return pgxFence.EnsureTable(t.Context(), conn) },
	}
	refused := func(when string) {
		t.Helper()
		for what, use := range uses {
			if err := use(); err == nil || !strings.Contains(err.Error(), "owner of the database") || !strings.Contains(err.Error(), "hasp migrate --grant ROLE") {
				t.Errorf("%s, %s: %v", what, when, err)
			}
		}
	}
	refused("without tables")
	b := testkit.Open(t, server.URL())
	defer b.Close()
	if _, _, err := b.(driver.Migrator).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	sqlkit.Postgres(t, server.URL(), fence.Schema())
	refused("without rights")
	sqlkit.Postgres(t, server.URL(), "DROP TABLE public.hasp_fence")
	var wg sync.WaitGroup
	for range 8 { // at once, and again, is harmless
		wg.Go(func() {
			if err := b.(driver.Granter).Grant(t.Context(), "hasp_app"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for what, use := range uses {
		if err := use(); err != nil {
			t.Errorf("%s, with the rights: %v", what, err)
		}
	}
	if _, err := fence.With(t.Context(), db, fencing.GrantOf("a", 7)); err != nil {
		t.Errorf("the fence: %v", err)
	}
	testkit.WantFinding(t, findings(t, app), "tables", driver.Info, "version")
	var want []string
	for _, table := range []string{"ceiling", "entries", "evictions", "holders", "names", "queues", "schema", "sessions"} {
		want = append(want, "hasp_"+table+" DELETE,INSERT,SELECT,UPDATE")
	}
	want = append(want, "hasp_fence INSERT,SELECT,UPDATE", "hasp_tokens SELECT,UPDATE", "public USAGE")
	for _, function := range ask[[]string](t, server.URL(), "SELECT array_agg(proname::text) FROM pg_proc WHERE pronamespace = 'public'::regnamespace") {
		want = append(want, function+" EXECUTE")
	}
	slices.Sort(want)
	have := ask[[]string](t, server.URL(), `SELECT array_agg(of || ' ' || rights ORDER BY (of || ' ' || rights) COLLATE "C") FROM (
		SELECT x.of, string_agg(a.privilege_type, ',' ORDER BY a.privilege_type) AS rights
		FROM (SELECT relname::text AS of, relacl AS acl FROM pg_class UNION ALL SELECT nspname, nspacl FROM pg_namespace
			UNION ALL SELECT datname, datacl FROM pg_database UNION ALL SELECT proname, proacl FROM pg_proc) x, aclexplode(x.acl) a
		WHERE a.grantee = 'hasp_app'::regrole GROUP BY x.of) r`)
	if !slices.Equal(have, want) {
		t.Errorf("rights:\n%q, want\n%q", have, want)
	}
}

func lockAndList(t *testing.T, storeURL string) error {
	c, err := hasp.Open(testkit.Context(t), storeURL, hasp.WithTTL(calm))
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Mutex("a").Lock(testkit.Context(t))
	if err != nil {
		return err
	}
	for name, err := range c.Names(t.Context(), "") {
		if err != nil || name != "a" {
			return fmt.Errorf("listed %q, %w", name, err)
		}
	}
	if _, err := c.Inspect(t.Context(), "a"); err != nil {
		return err
	}
	return l.Release(t.Context())
}

// A role's name is an identifier, for any text: nothing in it is run, and it grants to no other
// role, nor to all.
func TestGrantQuotesTheRole(t *testing.T) {
	t.Parallel()
	server := private(t)
	const odd = `a"b; DROP TABLE victim; -- $$ hasp_c`
	sqlkit.Postgres(t, server.URL(), "CREATE TABLE victim (); CREATE ROLE app LOGIN; CREATE ROLE "+pgx.Identifier{odd}.Sanitize())
	b := testkit.Open(t, server.URL())
	defer b.Close()
	if _, _, err := b.(driver.Migrator).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := b.(driver.Granter)
	for _, role := range []string{`app"; DROP TABLE victim; --`, `app; DROP TABLE victim`, `$$; DROP TABLE victim; $$`, "public", "PUBLIC", "app, app", "CURRENT_USER", "", "stranger"} {
		if err := g.Grant(t.Context(), role); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("role %q: %v", role, err)
		}
	}
	if err := g.Grant(t.Context(), odd); err != nil {
		t.Errorf("role %q: %v", odd, err)
	}
	for role, want := range map[string]bool{odd: true, "app": false} {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		var may bool
		if err := conn.QueryRow(t.Context(), "SELECT has_table_privilege($1, 'hasp_names', 'INSERT') AND to_regclass('victim') IS NOT NULL", role).Scan(&may); err != nil || may != want {
			t.Errorf("role %q may insert: %t, %v", role, may, err)
		}
		conn.Close(t.Context())
	}
}

// A role that may use the tables and not grant them is told so. (PostgreSQL only warns, and hasp said
// that the other role might use them.)
func TestGrantByOneWhoMayNot(t *testing.T) {
	t.Parallel()
	server := private(t)
	sqlkit.Postgres(t, server.URL(), "CREATE ROLE app LOGIN; CREATE ROLE other LOGIN")
	for _, c := range []struct {
		by, role string
		want     error
	}{{server.URL(), "app", nil}, {as(server.URL(), "app"), "other", driver.ErrInvalid}} {
		b := testkit.Open(t, c.by)
		defer b.Close()
		if _, _, err := b.(driver.Migrator).Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.(driver.Granter).Grant(t.Context(), c.role); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.role, err)
		}
	}
}
