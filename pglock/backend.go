package pglock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/watching"
)

// New makes a backend on a pool of yours, which the backend does not close. Requests
// share it with yours; renewals, notifications and the locks of Advisory have
// separate connections, made with the pool's settings, so that an exhausted pool never loses a
// lock. ctx bounds the examination of the server.
func New(ctx context.Context, pool *pgxpool.Pool, o *Options) (driver.Backend, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg := pool.Config()
	d := &dialer{cfg: cfg.ConnConfig, before: cfg.BeforeConnect}
	if err := repeatMixedUp(func() error { return d.examineFirst(ctx, opts) }); err != nil {
		return nil, explain(ctx, err)
	}
	return newBackend(d, d.runner(pool), func() {}, opts), nil
}

// NewDB makes a backend on a *sql.DB of yours, with any driver, which the backend does not
// close. There are no notifications then: waiters ask every Options.Poll. One of
// its connections is taken for the life of each session, so it must be allowed at least
// two. Table only. ctx bounds the examination of the server.
func NewDB(ctx context.Context, db *sql.DB, o *Options) (driver.Backend, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if opts.Strategy != StrategyTable {
		return nil, fmt.Errorf("%w: strategy=%s needs connections that only pgx gives; use Open or a URL", driver.ErrInvalid, opts.Strategy)
	}
	if n := db.Stats().MaxOpenConnections; n == 1 {
		return nil, fmt.Errorf("%w: a *sql.DB with MaxOpenConns 1 leaves no connection for renewals; allow 2 or more", driver.ErrInvalid)
	}
	d := &dbDialer{db: db}
	if err := d.examine(ctx); err != nil {
		return nil, err
	}
	return newTable(d, sqlRunner{db, &d.level}, func() {}, opts), nil
}

// newBackend chooses the strategy.
func newBackend(d *dialer, pool runner, closePool func(), o Options) driver.Backend {
	if o.Strategy == StrategyAdvisory {
		return newBound(d, pool, closePool, o)
	}
	return newTable(d, pool, closePool, o)
}

// table is strategy=table.
type table struct {
	*tables
	links     linker
	closePool func()
	leaveSQL  string
	watched   watching.Group
}

func newTable(links linker, pool runner, closePool func(), o Options) *table {
	t := &table{tables: newTables(pool, o), links: links, closePool: closePool, leaveSQL: leaveSQL(o.DurableRelease)}
	t.watched.Run = t.watchAll
	return t
}

func (t *table) String() string { return t.links.String() }

// minTTL leaves room for two renewals on a slow network beside the least margin.
const minTTL = 200 * time.Millisecond

func (t *table) Traits() driver.Traits {
	return driver.Traits{
		FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true, Push: t.links.listens(),
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
	err := s.conn.start(ctx, s.Done)
	if err == nil {
		err = s.conn.ask(ctx, func(ctx context.Context, r runner) error {
			return one(ctx, r, t.naming.sql("SELECT hasp_begin(hasp_level($1::pg_catalog.text), $2::bigint, $3::pg_catalog.text)::pg_catalog.text, hasp_where()"),
				[]any{s.id, o.TTL.Microseconds(), s.channelName()}, new(string), &where)
		})
	}
	if err != nil {
		s.End()
		if noSchema(err) {
			t.forget()
		}
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
	_ driver.Granter  = (*table)(nil)
)
