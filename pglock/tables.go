package pglock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp/driver"
)

// tables are hasp's tables in a database, and the pool to reach them.
type tables struct {
	pool   runner
	opts   Options
	naming naming

	mu     sync.Mutex
	there  bool // they have been seen, in the version we need
	broken bool // a statement has missed something since
}

func newTables(pool runner, o Options) *tables {
	return &tables{pool: pool, opts: o, naming: newNaming(o.Schema, o.Prefix)}
}

// Schema returns what `hasp migrate --print` prints.
func (t *tables) Schema() string { return t.naming.text() }

// Migrate creates what is missing, also where the version says that nothing is.
func (t *tables) Migrate(ctx context.Context) (from, to int, err error) {
	return t.naming.migrate(ctx, t.pool, true)
}

// fenceTable is sqlfence's, in its usual place, and fenceSchema makes it: a role that may not create
// cannot do that either. A test compares it with sqlfence, which programs that lock do not link.
const (
	fenceTable  = "public.hasp_fence"
	fenceSchema = `CREATE TABLE IF NOT EXISTS "public"."hasp_fence" (name text COLLATE "C" PRIMARY KEY, token bigint NOT NULL) WITH (fillfactor = 50)`
)

// Grant lets a role use the tables, and the fence's, which is made if it is missing and the caller
// may. PostgreSQL takes "public" for all roles, also where it is quoted.
func (t *tables) Grant(ctx context.Context, role string) error {
	if role == "public" {
		return fmt.Errorf("%w: public is all roles; name one", driver.ErrInvalid)
	}
	to := pgx.Identifier{role}.Sanitize()
	err := t.pool.atomically(ctx, func(tx runner) error {
		if err := tx.script(ctx, preamble); err != nil {
			return err
		}
		var there, may, grants bool
		err := one(ctx, tx, `SELECT to_regclass($1::text) IS NOT NULL, coalesce(has_schema_privilege(to_regnamespace('public')::oid, 'CREATE'), false),
			has_table_privilege($2::text, 'DELETE WITH GRANT OPTION')`, []any{fenceTable, t.naming.sql("hasp_entries")}, &there, &may, &grants)
		if err == nil && !grants { // PostgreSQL would only warn
			return fmt.Errorf("%w: this role may not grant rights on hasp's tables; run it as their owner", driver.ErrInvalid)
		}
		script := t.naming.grants(to)
		if !there && may {
			script += fenceSchema + ";\n"
		}
		if there || may {
			script += "GRANT SELECT, INSERT, UPDATE ON " + fenceTable + " TO " + to
		}
		if err == nil {
			err = tx.script(ctx, script)
		}
		return err
	})
	if sqlState(err) != "" {
		return fmt.Errorf("%w (%w): let role %q use hasp's tables: %w", driver.ErrRefused, driver.ErrInvalid, role, err)
	}
	return err
}

// ensure looks whether the tables are there, and creates them at the first use unless that
// is left to `hasp migrate`.
func (t *tables) ensure(ctx context.Context) error {
	t.mu.Lock()
	there, broken := t.there, t.broken
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
	} else if _, _, err := t.naming.migrate(ctx, t.pool, broken); err != nil {
		return err
	}
	t.mu.Lock()
	t.there, t.broken = true, false
	t.mu.Unlock()
	return nil
}

// installed is ensure for calls that only read: what does not exist is not created, but what an
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
// each argument of a type that is spelled out: one of an unknown type could call another
// role's function of the same name in the same schema.
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
	t.there, t.broken = false, true
	t.mu.Unlock()
}

// sweepEvery is how often a session offers to remove dead sessions and idle names. No client is
// appointed for it: the server has one of those that offer do it, once in a minute for all.
const sweepEvery = time.Minute

func (t *tables) sweep(done context.Context) {
	for more := false; ; {
		pause := sweepEvery/2 + rand.N(sweepEvery)
		if more {
			pause = time.Second // in between others may use the database
		}
		timer := time.NewTimer(pause)
		select {
		case <-done.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		ctx, cancel := context.WithTimeout(done, sweepEvery/2)
		// After an error the next one tries again.
		err := t.ask(ctx, "SELECT hasp_tidy($1::bigint)", []any{t.opts.Retention.Microseconds()}, &more)
		more = more && err == nil
		cancel()
	}
}
