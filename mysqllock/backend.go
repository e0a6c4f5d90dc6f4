package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
	"github.com/hasplock/hasp/driver/kit/watching"
)

// New makes a Backend on a pool of yours, which closing the Backend does not close. It must
// be in autocommit mode, as it is unless its DSN says otherwise, and have a database chosen.
//
// A session keeps one connection of the pool for renewals, and one more while it waits. If
// the pool is limited (SetMaxOpenConns), what it can lend must be more than that; a renewal
// whose connection has broken needs a new one at once. With GetLock each lock that is
// held or waited for keeps a connection, and one of a limited pool is left to all else: an
// acquisition waits for another lock's connection then. Set the limit when you make the pool.
//
// Nothing is sent before the first use.
func New(db *sql.DB, o *Options) (driver.Backend, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: the pool is nil", driver.ErrInvalid)
	}
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return open(pools{work: &pool{DB: db}, kept: db, label: "mysql"}, opts), nil
}

// pools are where connections come from. kept lends those that are kept for long.
type pools struct {
	work  *pool
	kept  *sql.DB
	label string
	own   bool
}

// close ends pools that are ours. All their errors are of last messages that could not be sent,
// on connections that had broken while they were idle: these are as closed as the others, and
// an error would report a fault where there is none.
func (p pools) close() {
	if !p.own {
		return
	}
	_ = p.work.Close()
	if p.kept != p.work.DB {
		_ = p.kept.Close()
	}
}

func open(p pools, o Options) driver.Backend {
	s := &store{pools: p, opts: o, passed: successOnce{turn: make(chan struct{}, 1)},
		schema: &schema{db: p.work.DB, prefix: o.Prefix, never: o.NoMigrate, steps: migrations}}
	if o.Strategy == StrategyTable {
		t := &table{store: s}
		t.watched.Run = t.watchAll
		return t
	}
	return newBound(s)
}

// store has what the strategies share.
type store struct {
	pools
	opts       Options
	schema     *schema
	statements sync.Map    // what named has made
	passed     successOnce // the check of fit
	// Known after fit.
	galera   atomic.Bool            // this is a node of a Galera cluster
	database atomic.Pointer[string] // hashOfDatabase, on a pool of ours
}

func (s *store) String() string { return s.label }

// Close closes the pools that were opened from a URL.
func (s *store) Close() error {
	s.pools.close()
	return nil
}

// Schema returns the migrations, for MySQL's own shell.
func (s *store) Schema() string { return s.schema.text() }

// Migrate creates what is missing, also with Options.NoMigrate: it was asked for.
func (s *store) Migrate(ctx context.Context) (from, to int, err error) {
	s.schema.broken.Store(true) // so that it looks for all of it
	return s.schema.migrate(ctx)
}

// named puts the prefix into one of our few statements, and keeps that, and then the arguments.
func (s *store) named(text string, args ...any) string {
	made, ok := s.statements.Load(text)
	if !ok {
		made, _ = s.statements.LoadOrStore(text, s.schema.named(text))
	}
	return statement(made.(string), args...)
}

// fit checks, once, what no lock can do without: autocommit, and the tables.
func (s *store) fit(ctx context.Context) error {
	return s.passed.do(ctx, func() error {
		var autocommit bool
		var database sql.NullString
		var version string
		if err := row(ctx, s.work, "SELECT @@autocommit, "+hashOfDatabase+", VERSION()", &autocommit, &database, &version); err != nil {
			return err
		}
		if err := doctor.Refuse(products, version); err != nil && !s.opts.NoFence {
			return err
		}
		least, most := s.opts.Strategy.leastOfPool(), s.kept.Stats().MaxOpenConnections
		switch {
		case !s.own && most > 0 && most < least:
			return fmt.Errorf("%w: the pool lends %d connections (SetMaxOpenConns), and strategy=%s needs %d", driver.ErrInvalid, most, s.opts.Strategy, least)
		case !autocommit:
			return fmt.Errorf("%w: the pool's connections are not in autocommit mode", driver.ErrInvalid)
		case !database.Valid:
			return fmt.Errorf("%w: no database is chosen: name it in the URL's path, or in the pool's DSN", driver.ErrInvalid)
		}
		is, err := galera(ctx, s.work)
		if err != nil {
			return err
		}
		s.galera.Store(is)
		if s.own { // another could be chosen on a connection of the user's
			s.database.Store(&database.String)
		}
		if s.opts.NoFence {
			return nil
		}
		return s.schema.ready(ctx)
	})
}

// table is the strategy of the queues in tables. schema/2.sql says how they work and in
// which order rows are locked.
type table struct {
	*store
	watched watching.Group
}

// minTTL leaves a renewal time for two commits on a slow disk.
const minTTL = 200 * time.Millisecond

// Traits: everything but push. A waiting client has one call under way, for all that it waits for,
// in which the server waits for the wake-up lock of the client in its way; where there is no such
// client, it polls.
//
// Not Forgets: a server whose commits are durable forgets nothing, and a release whose answer
// was lost is confirmed by asking again. Where it may have forgotten, since another server or
// another run of it answers, Leave does not say ErrGone (see session.Leave).
func (t *table) Traits() driver.Traits {
	return driver.Traits{
		FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true,
		Liveness: driver.Leased, MinTTL: minTTL,
	}
}

// Open starts a session: a row with its expiry, and a connection for its renewals. The
// expiry is set by a moment that the server takes after the call was made.
func (t *table) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := t.fit(ctx); err != nil {
		return nil, 0, err
	}
	s := newSession(t, o)
	var server uint64
	err := s.renewal.do(ctx, func(c *sql.Conn) error {
		err := row(ctx, c, t.named("CALL {p}open_2(?, ?)", s.id, o.TTL.Microseconds()), &server)
		if err == nil {
			err = s.wakeups.refill(ctx, c, 0)
		}
		if err == nil && rand.N(sweepFirst) == 0 {
			t.sweep(ctx, c)
		}
		return err
	})
	if err != nil {
		t.lookAgain(err)
		s.End()
		s.renewal.end()
		return nil, 0, err
	}
	s.Begun(origin(server))
	return s, o.TTL, nil
}

// lookAgain has the tables checked once more, if they are missing: by the next session, or the next
// lock that is bound to a connection.
func (s *store) lookAgain(err error) {
	if isMissing(err) {
		s.schema.broken.Store(true)
		s.passed.reset()
	}
}

// gone turns "no such table" into what it means for entries that were in it.
func (t *table) gone(err error) error {
	if !isMissing(err) {
		return err
	}
	t.lookAgain(err)
	return fmt.Errorf("%w: %w", driver.ErrGone, err)
}

// pool is where requests get their connections. A pool of ours counts those alone that are used by
// requests: the ones that are kept for long, for renewals and for waiting, come out of the same
// pool beside them. So a client that waits has the connection for that which it has just asked
// with, and does not need another. A pool of the user's counts by itself.
type pool struct {
	*sql.DB
	turns chan struct{} // has room for those that may be used at a time; nil: it is not counted here
}

func newPool(db *sql.DB, connections int) *pool { return &pool{db, make(chan struct{}, connections)} }

// turn waits until the querier may be used, and returns what ends the use.
func turn(ctx context.Context, q querier) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, ok := q.(*pool)
	if !ok || p.turns == nil {
		return func() {}, nil
	}
	select {
	case p.turns <- struct{}{}:
		return p.done, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pool) done() { <-p.turns }
