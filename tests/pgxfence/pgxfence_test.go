//go:build unix

package pgxfence_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/fencetest"
	_ "github.com/hasplock/hasp/pglock"
	"github.com/hasplock/hasp/pglock/pgxfence"
)

func TestMain(m *testing.M) { fencetest.Main(m, open) }

// target is a URL, a space, and an ending for the names of tables.
func target(url string) string { return url + " _" + strings.ToLower(rand.Text()[:10]) }

var pools sync.Map // URL -> *pgxpool.Pool, for as long as the process

type resource struct {
	pool  *pgxpool.Pool
	fence *pgxfence.Fence
	cells string
	o     pgx.TxOptions
}

func open(ctx context.Context, target string) (fencetest.Resource, error) {
	url, suffix, _ := strings.Cut(target, " ")
	known, ok := pools.Load(url)
	if !ok {
		p, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, err
		}
		known, _ = pools.LoadOrStore(url, p)
	}
	r := &resource{pool: known.(*pgxpool.Pool), cells: "cells" + suffix}
	var err error
	if r.fence, err = pgxfence.New(&sqlfence.Options{Table: "fence" + suffix}); err != nil {
		return nil, err
	}
	if err := r.fence.EnsureTable(ctx, r.pool); err != nil {
		return nil, err
	}
	create := "CREATE TABLE IF NOT EXISTS " + r.cells + ` (name text COLLATE "C" PRIMARY KEY, value text NOT NULL)`
	if _, err := r.pool.Exec(ctx, create); err != nil {
		// Another process made it at the same moment; then it is there now.
		if _, err := r.pool.Exec(ctx, create); err != nil {
			return nil, err
		}
	}
	return r, nil
}

var writers fencetest.Writers[*pgxfence.Writer]

func (r *resource) with(ctx context.Context, name string, token uint64) (*pgxfence.Writer, error) {
	return r.fence.With(ctx, r.pool, fencing.GrantOf(name, token))
}

func (r *resource) Advance(ctx context.Context, name string, token uint64) error {
	_, err := r.with(ctx, name, token)
	return err
}

func (r *resource) put() string {
	return "INSERT INTO " + r.cells + " VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
}

func (r *resource) Write(ctx context.Context, name string, token uint64, value string) error {
	w, err := writers.Get(r.cells, name, token, func() (*pgxfence.Writer, error) { return r.with(ctx, name, token) })
	if err != nil {
		return err
	}
	return w.DoTx(ctx, r.o, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, r.put(), name, value)
		return err
	})
}

func (r *resource) Overwrite(ctx context.Context, name, value string) error {
	_, err := r.pool.Exec(ctx, r.put(), name, value)
	return err
}

func (r *resource) Read(ctx context.Context, name string) (value string, err error) {
	err = r.pool.QueryRow(ctx, "SELECT value FROM "+r.cells+" WHERE name = $1", name).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return value, err
}

func TestRule(t *testing.T) { fencetest.Rule(t, open, target(backends.SharedPostgres(t).URL())) }

func TestPaused(t *testing.T) {
	fencetest.Paused(t, open, backends.SharedPostgres(t).URL(), target(backends.SharedPostgres(t).URL()))
}

func TestLoad(t *testing.T) {
	url := backends.SharedPostgres(t).URL()
	fencetest.Load(t, open, target(url), target(url))
	t.Run("serializable", func(t *testing.T) {
		fencetest.Load(t, func(ctx context.Context, target string) (fencetest.Resource, error) {
			r, err := open(ctx, target)
			if err == nil {
				r.(*resource).o.IsoLevel = pgx.Serializable
			}
			return r, err
		}, target(url), "")
	})
}

// What fn returns rolls back and comes out as it is.
func TestRollsBack(t *testing.T) {
	opened, err := open(t.Context(), target(backends.SharedPostgres(t).URL()))
	if err != nil {
		t.Fatal(err)
	}
	r, failed := opened.(*resource), errors.New("failed")
	w, err := r.with(t.Context(), "n", 7)
	if err != nil {
		t.Fatal(err)
	}
	err = w.Do(t.Context(), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), r.put(), "n", "never"); err != nil {
			return err
		}
		return failed
	})
	if !errors.Is(err, failed) || errors.Is(err, fencing.ErrConflict) {
		t.Errorf("got %v", err)
	}
	if got, err := r.Read(t.Context(), "n"); got != "" || err != nil {
		t.Errorf("the cell is %q, %v", got, err)
	}
}

// Many programs that start at once all find or make the table, and a role that may make none finds
// it. The control is a missing table.
func TestEnsureTable(t *testing.T) {
	ctx, url := t.Context(), backends.SharedPostgres(t).URL()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	fence := func() *pgxfence.Fence {
		g, err := pgxfence.New(&sqlfence.Options{Table: "fence_" + strings.ToLower(rand.Text()[:10])})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	for range 5 { // which of the catalog's ways to fail a loser meets is chance
		g := fence()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := g.EnsureTable(ctx, pool); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if _, err := g.With(ctx, pool, fencing.GrantOf("n", 1)); err != nil {
			t.Error(err)
		}
	}
	there := fence()
	if err := there.EnsureTable(ctx, pool); err != nil {
		t.Fatal(err)
	}
	role := "humble_" + strings.ToLower(rand.Text()[:10])
	if _, err := pool.Exec(ctx, "CREATE ROLE "+role+" LOGIN; GRANT pg_read_all_data, pg_write_all_data TO "+role); err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.User = role
	humble, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer humble.Close(ctx)
	if err := there.EnsureTable(ctx, humble); err != nil {
		t.Errorf("the table is there: %v", err)
	}
	if err := fence().EnsureTable(ctx, humble); err == nil {
		t.Error("the role may create: this has tested nothing")
	}
}

// counting counts statements.
type counting struct{ statements []string }

func (c *counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	c.statements = append(c.statements, q.SQL)
	return ctx
}

func (c *counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A fenced transaction is begin, the comparison, the caller's statements, commit.
func TestCost(t *testing.T) {
	url := backends.SharedPostgres(t).URL()
	opened, err := open(t.Context(), target(url))
	if err != nil {
		t.Fatal(err)
	}
	r := opened.(*resource)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c := &counting{}
	config.Tracer = c
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	w, err := r.fence.With(t.Context(), conn, fencing.GrantOf("n", 7))
	if err != nil {
		t.Fatal(err)
	}
	c.statements = nil // of With, once for a grant
	err = w.Do(t.Context(), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), r.put(), "n", "v")
		return err
	})
	if err != nil || len(c.statements) != 4 || c.statements[2] != r.put() {
		t.Errorf("%q, %v", c.statements, err)
	}
}

func BenchmarkTx(b *testing.B) {
	opened, err := open(b.Context(), target(backends.SharedPostgres(b).URL()))
	if err != nil {
		b.Fatal(err)
	}
	r, ctx := opened.(*resource), b.Context()
	b.Run("unfenced", func(b *testing.B) {
		for b.Loop() {
			err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, r.put(), "n", "v")
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("fenced", func(b *testing.B) {
		for b.Loop() {
			if err := r.Write(ctx, "n", 7, "v"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// The search_path leads two roles to different schemas, and they compare in one table all the same.
func TestFenceOfRolesWithDifferentPaths(t *testing.T) {
	base := backends.SharedPostgres(t).URL()
	admin, err := pgxpool.New(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	table := "fence" + strings.ToLower(rand.Text()[:10])
	with := func(token uint64) (*pgxfence.Writer, error) {
		path := "path_" + strings.ToLower(rand.Text()[:10])
		if _, err := admin.Exec(t.Context(), "CREATE SCHEMA "+path); err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.New(t.Context(), base+"&search_path="+path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		g, err := pgxfence.New(&sqlfence.Options{Table: table})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.EnsureTable(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		return g.With(t.Context(), pool, fencing.GrantOf("n", token))
	}
	stale, err := with(7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := with(8); err != nil {
		t.Fatal(err)
	}
	err = stale.Do(t.Context(), func(pgx.Tx) error { t.Error("the stale function runs"); return nil })
	if !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a stale write: %v", err)
	}
}
