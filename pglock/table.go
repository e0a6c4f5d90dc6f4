package pglock

import (
	"context"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// table is strategy=table.
type table struct {
	*tables
	links     linker
	closePool func()
}

// tables are hasp's tables in a database, and the pool to reach them.
type tables struct {
	pool   runner
	opts   Options
	naming naming

	mu    sync.Mutex
	there bool // they have been seen, in the version we need
}

func newTables(pool runner, o Options) *tables {
	return &tables{pool: pool, opts: o, naming: newNaming(o.Schema, o.Prefix)}
}

func newTable(links linker, pool runner, closePool func(), o Options) *table {
	return &table{tables: newTables(pool, o), links: links, closePool: closePool}
}

// Schema returns what `hasp migrate --print` prints.
func (t *tables) Schema() string { return t.naming.text() }

// Migrate creates what is missing.
func (t *tables) Migrate(ctx context.Context) (from, to int, err error) {
	return t.naming.migrate(ctx, t.pool)
}

// ensure looks whether the tables are there, and creates them at the first use unless that
// is left to `hasp migrate`.
func (t *tables) ensure(ctx context.Context) error {
	t.mu.Lock()
	there := t.there
	t.mu.Unlock()
	if there {
		return nil
	}
	if t.opts.NoMigrate {
		v, err := t.naming.versionNow(ctx, t.pool)
		if err == nil {
			err = t.naming.check(v)
		}
		if err != nil {
			return explain(ctx, err)
		}
	} else if _, _, err := t.Migrate(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	t.there = true
	t.mu.Unlock()
	return nil
}

// installed is ensure for those who only look: what is not there is not created, but what an
// earlier version has made is brought up to date.
func (t *tables) installed(ctx context.Context) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	t.mu.Lock()
	there := t.there
	t.mu.Unlock()
	if !there {
		if v, err := t.naming.versionNow(ctx, t.pool); err != nil || v == 0 {
			return false, explain(ctx, err)
		}
	}
	return true, t.ensure(ctx)
}

// safely runs do where names mean what they mean in pg_catalog, also on a pool of the user's: for
// statements with operators in them. The others call functions of ours by their schema, with
// each argument of a type that is spelled out: one of an unknown type could call a namesake
// that somebody has put beside it.
func (t *tables) safely(ctx context.Context, do func(runner) error) error {
	return t.pool.atomically(ctx, func(tx runner) error {
		if err := tx.script(ctx, "SET LOCAL "+safePath); err != nil {
			return err
		}
		return do(tx)
	})
}

// ask runs a statement that answers with one row. It is asked again at once if the server
// undid it in favour of another transaction: nothing was done then.
func (t *tables) ask(ctx context.Context, stmt string, args []any, into ...any) error {
	const most = 5
	var err error
	for range most {
		if err = one(ctx, t.pool, t.naming.sql(stmt), args, into...); !rolledBack(err) {
			break
		}
	}
	if noSchema(err) {
		t.forget()
	}
	return explain(ctx, err)
}

// forget has the next session look for the tables, and create them anew.
func (t *tables) forget() {
	t.mu.Lock()
	t.there = false
	t.mu.Unlock()
}

func (t *table) String() string { return t.links.String() }

// minTTL leaves room for two renewals on a slow network beside the least margin.
const minTTL = 200 * time.Millisecond

func (t *table) Traits() driver.Traits {
	return driver.Traits{
		FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true, Push: t.links.hears(),
		Liveness: driver.Leased, MinTTL: minTTL,
	}
}

// Open makes the session's row, on the connection that will renew it.
func (t *table) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if err := t.ensure(ctx); err != nil {
		return nil, 0, err
	}
	s := newSession(t, o)
	var where string
	err := s.line.start(ctx, s.Done)
	if err == nil {
		err = s.line.ask(ctx, func(ctx context.Context, r runner) error {
			return one(ctx, r, t.naming.sql("SELECT hasp_begin(hasp_level($1::pg_catalog.text), $2::bigint)::pg_catalog.text, hasp_where()"),
				[]any{s.id, o.TTL.Microseconds()}, new(string), &where)
		})
	}
	if err != nil {
		s.End()
		return nil, 0, explain(ctx, err)
	}
	s.Begun(where)
	go t.sweep(s.Done)
	return s, o.TTL, nil
}

func (t *table) Close() error {
	t.closePool()
	return nil
}

var (
	_ driver.Namer    = (*table)(nil)
	_ driver.Watcher  = (*table)(nil)
	_ driver.Evicter  = (*table)(nil)
	_ driver.Migrator = (*table)(nil)
)
