package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

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

// mallory may create things in schema public, as everybody might before PostgreSQL 15, and it is
// in everybody's search_path. What she makes fits arguments better than what pg_catalog has, and
// notes who has run it.
const mallory = `
	CREATE TABLE caught (what text);
	GRANT INSERT, SELECT ON caught TO PUBLIC;
	CREATE FUNCTION spring(what text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.caught VALUES (what || ' as ' || current_user); END $$;
	CREATE FUNCTION f1(a numeric, b int) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN PERFORM public.spring('numeric * int'); RETURN a OPERATOR(pg_catalog.*) b::numeric; END $$;
	CREATE OPERATOR * (LEFTARG = numeric, RIGHTARG = int, FUNCTION = f1);
	CREATE FUNCTION f2(a numeric, b int) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN PERFORM public.spring('numeric / int'); RETURN a OPERATOR(pg_catalog./) b::numeric; END $$;
	CREATE OPERATOR / (LEFTARG = numeric, RIGHTARG = int, FUNCTION = f2);
	CREATE FUNCTION f3(a float8, b int) RETURNS float8 LANGUAGE plpgsql AS $$ BEGIN PERFORM public.spring('float8 * int'); RETURN a OPERATOR(pg_catalog.*) b::float8; END $$;
	CREATE OPERATOR * (LEFTARG = float8, RIGHTARG = int, FUNCTION = f3);
	CREATE FUNCTION f4(a text, b bigint) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM public.spring('text || bigint'); RETURN a OPERATOR(pg_catalog.||) b::text; END $$;
	CREATE OPERATOR || (LEFTARG = text, RIGHTARG = bigint, FUNCTION = f4);`

// namesakes puts a function beside each of ours that has a number among its arguments: for an
// argument whose type is not spelled out, PostgreSQL prefers float8.
const namesakes = `DO $$
	DECLARE
		f record;
	BEGIN
		FOR f IN SELECT p.proname AS name, replace(replace(oidvectortypes(p.proargtypes), 'bigint', 'float8'), 'integer', 'float8') AS args
			FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND starts_with(p.proname, 'hasp_') AND p.prokind = 'f'
				AND p.proowner <> 'mallory'::regrole AND oidvectortypes(p.proargtypes) ~ 'bigint|integer'
		LOOP
			EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE plpgsql AS $f$ BEGIN PERFORM public.spring(%L); RETURN NULL; END $f$',
				f.name, f.args, 'a namesake of ' || f.name);
		END LOOP;
	END $$`

// A role that may create objects in a schema of a client's search_path cannot run code with the
// rights of that client: in all that it does, and by any connection. The control is an ordinary
// statement.
func TestHostileRole(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := private(t)
	sqlkit.Postgres(t, server.URL(), "CREATE ROLE mallory LOGIN; GRANT CREATE ON SCHEMA public TO mallory")
	sqlkit.Postgres(t, as(server.URL(), "mallory"), mallory)

	for _, strategy := range []string{"table", "advisory"} {
		everything(t, server.URL(), testkit.Open(t, sqlkit.With(server.URL(), "strategy="+strategy)))
	}
	sqlkit.Postgres(t, as(server.URL(), "mallory"), namesakes)
	for _, strategy := range []string{"table", "advisory"} {
		everything(t, server.URL(), testkit.Open(t, sqlkit.With(server.URL(), "strategy="+strategy)))
		pool, err := pgxpool.New(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		b, err := pglock.New(t.Context(), pool, &pglock.Options{Strategy: pglock.Strategy(strategy)})
		if err != nil {
			t.Fatal(err)
		}
		everything(t, server.URL(), b)
	}
	everything(t, server.URL(), testkit.Open(t, sqlkit.With(server.URL(), "strategy=advisory", "fence=off")))
	everything(t, server.URL(), testkit.Open(t, backends.StartPgBouncer(t, server, "transaction").URL()))
	b, err := pglock.NewDB(t.Context(), stdlib.OpenDB(*pgxConfig(t, server.URL())), nil)
	if err != nil {
		t.Fatal(err)
	}
	everything(t, server.URL(), b)

	if caught := ask[[]string](t, server.URL(), "SELECT coalesce(array_agg(DISTINCT what), '{}') FROM caught"); len(caught) > 0 {
		t.Errorf("mallory's code has run: %s", strings.Join(caught, ", "))
	}
	ask[string](t, server.URL(), "SELECT (extract(epoch FROM now()) * 1000000)::text")
	if ask[int](t, server.URL(), "SELECT count(*) FROM caught WHERE what LIKE '% as postgres'") == 0 {
		t.Error("the control was not caught: this test catches nothing")
	}
}

// everything does all that a client can have a server do.
func everything(t *testing.T, serverURL string, b driver.Backend) {
	t.Helper()
	c := testkit.ClientOn(t, b, hasp.WithTTL(calm))
	defer c.Close()
	ctx := testkit.Context(t)
	fatal := func(err error) {
		t.Helper()
		if err != nil && !errors.Is(err, hasp.ErrUnsupported) {
			t.Fatal(err)
		}
	}
	m, ok := b.(driver.Migrator)
	if ok {
		_, _, err := m.Migrate(ctx)
		fatal(err)
	}
	l := testkit.Lock(t, c, "a")
	if _, err := c.Mutex("a").TryLock(ctx); !errors.Is(err, hasp.ErrBusy) && !errors.Is(err, hasp.ErrDeadlock) {
		t.Error(err)
	}
	waits := make(chan error, 1)
	second := testkit.ClientOn(t, b, hasp.WithTTL(calm))
	go func() { waits <- second.Do(ctx, "a", func(context.Context) error { return nil }) }()
	for _, err := range c.Follow(ctx, "a") {
		fatal(err)
		break
	}
	for _, err := range c.Names(ctx, "") {
		fatal(err)
	}
	testkit.Release(t, l)
	fatal(<-waits)
	if c.Traits().Shared {
		w, err := c.RWMutex("b").Lock(ctx)
		fatal(err)
		fatal(w.Downgrade(ctx))
		testkit.Release(t, w)
		term, err := c.Election("c").Campaign(ctx, []byte("1"))
		fatal(err)
		fatal(term.Publish(ctx, []byte("2")))
		fatal(term.Release(ctx))
	}
	l = testkit.Lock(t, c, "d")
	fatal(evictAll(t, c, "d"))
	testkit.Lost(t, l, hasp.ReasonDenied, hasp.ReasonSessionGone)
	_, err := c.LastEviction(ctx, "d")
	fatal(err)
	if d, ok := b.(driver.Diagnoser); ok {
		_, err := d.Diagnose(ctx)
		fatal(err)
	}
	ask[bool](t, serverURL, "SELECT public.hasp_tidy(86400000000)") // as each client does now and then
}

// evictAll evicts who holds a name. An advisory lock is listed by its connection until it is
// recorded, and then that is there no more.
func evictAll(t *testing.T, c *hasp.Client, name string) (err error) {
	t.Helper()
	testkit.Until(t, "the eviction", func() error {
		for _, e := range testkit.Entries(t, c, name) {
			if err = c.Evict(testkit.Context(t), name, e.ID, "why"); errors.Is(err, hasp.ErrNotFound) {
				return err
			}
		}
		return nil
	})
	return err
}

// Everything of ours at the server has a search_path, or is bound when it is created. The
// procedure commits, and cannot have one: it only calls what has.
func TestEveryFunctionHasItsPath(t *testing.T) {
	t.Parallel()
	migrated(t, "pathless_")
	bare := ask[[]string](t, backends.SharedPostgres(t).URL(), `SELECT coalesce(array_agg(p.proname::text ORDER BY p.proname), '{}') FROM pg_proc p
		WHERE starts_with(p.proname, 'pathless_') AND p.prosqlbody IS NULL AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)`)
	if got := fmt.Sprint(bare); got != "[pathless_obtain]" {
		t.Errorf("without a search_path: %s", got)
	}
}

// A table that another role has put where ours is to be is not taken for it: its triggers would run
// as each client.
func TestForeignTables(t *testing.T) {
	t.Parallel()
	server := private(t)
	sqlkit.Postgres(t, server.URL(), "CREATE ROLE mallory LOGIN; GRANT CREATE ON SCHEMA public TO mallory")
	sqlkit.Postgres(t, as(server.URL(), "mallory"), `CREATE TABLE hasp_names (name text COLLATE "C" PRIMARY KEY, seq bigint, watched bigint DEFAULT 0, used bigint DEFAULT 0)`)
	b := testkit.Open(t, server.URL())
	defer b.Close()
	m := b.(driver.Migrator)
	if _, _, err := m.Migrate(t.Context()); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "hasp_names") || !strings.Contains(err.Error(), "mallory") {
		t.Errorf("over another role's table: %v", err)
	}
	sqlkit.Postgres(t, server.URL(), "ALTER TABLE hasp_names OWNER TO postgres")
	if _, _, err := m.Migrate(t.Context()); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "stop the clients") {
		t.Errorf("beside a table of ours that is none: %v", err)
	}
	sqlkit.Postgres(t, server.URL(), "DROP TABLE hasp_names")
	if _, _, err := m.Migrate(t.Context()); err != nil {
		t.Error(err)
	}
}
