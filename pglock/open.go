package pglock

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp/driver"
)

// Strategy is how locks are kept at the server.
type Strategy string

const (
	StrategyTable    Strategy = "table"    // queues in tables: first come, first served; all primitives; leases
	StrategyAdvisory Strategy = "advisory" // pg_advisory_lock on connections of their own: shares mutexes with others
	StrategyRow      Strategy = "row"      // SELECT ... FOR UPDATE in an open transaction on a connection of its own
)

// Options are the settings of a store. nil or the zero value means the defaults.
type Options struct {
	// Strategy is how locks are kept at the server. Default: StrategyTable.
	Strategy Strategy

	// Schema has hasp's tables. It is created if it is missing and the role may.
	// Default: "public". Never what search_path says: roles with different paths would
	// use different tables, and not exclude each other.
	Schema string

	// Prefix begins the names of tables and functions. Default: "hasp_".
	Prefix string

	// NoMigrate has nothing created at the first use; `hasp migrate` does it then.
	NoMigrate bool

	// Connections bounds the pool that a URL opens. Each session has one more, for renewals
	// and notifications; Advisory and Row have one more for each lock and waiter. Default: 8.
	Connections int

	// Poll is how often the first waiter asks where notifications do not arrive: behind a
	// pool that hands connections out for a transaction, and over a *sql.DB. Default: 100 ms.
	Poll time.Duration

	// NoListen says that notifications do not arrive. They are tested for where a pool
	// stands before the server; this saves the test.
	NoListen bool

	// Retention is how long an unused name is remembered, for its next token. Default: a
	// day.
	Retention time.Duration

	// Key is the rule that makes a name into the number of an advisory lock: KeyHash, the
	// default, is 64 bits of SHA-256; the others share locks with other programs. For
	// Advisory only.
	Key string

	// NoFence draws no tokens, which spares Advisory and Row a statement.
	NoFence bool
}

const (
	defaultPrefix      = "hasp_"
	defaultSchema      = "public"
	defaultConnections = 8
	defaultPoll        = 100 * time.Millisecond
	defaultRetention   = 24 * time.Hour
)

// plainName is what an SQL identifier may be here. A prefix leaves room for what follows
// it within PostgreSQL's 63 bytes.
var (
	plainName   = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	plainPrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)
)

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	set(&r.Strategy, StrategyTable)
	set(&r.Schema, defaultSchema)
	set(&r.Prefix, defaultPrefix)
	set(&r.Connections, defaultConnections)
	set(&r.Poll, defaultPoll)
	set(&r.Retention, defaultRetention)
	set(&r.Key, KeyHash)
	switch {
	case r.Strategy != StrategyTable && r.Strategy != StrategyAdvisory && r.Strategy != StrategyRow:
		return r, fmt.Errorf("%w: the strategy must be table, advisory or row", driver.ErrInvalid)
	case !plainName.MatchString(r.Schema):
		return r, fmt.Errorf("%w: schema has 1 to 63 lower-case letters, digits and _, and does not begin with a digit", driver.ErrInvalid)
	case !plainPrefix.MatchString(r.Prefix):
		return r, fmt.Errorf("%w: prefix has 1 to 40 lower-case letters, digits and _, and does not begin with a digit", driver.ErrInvalid)
	case r.Connections < 1:
		return r, fmt.Errorf("%w: connections (%d) must be at least 1", driver.ErrInvalid, r.Connections)
	case r.Poll < 10*time.Millisecond:
		return r, fmt.Errorf("%w: poll (%s) cannot be shorter than 10ms", driver.ErrInvalid, r.Poll)
	case r.Retention < time.Hour:
		return r, fmt.Errorf("%w: retention (%s) cannot be shorter than an hour", driver.ErrInvalid, r.Retention)
	case r.Strategy != StrategyAdvisory && r.Key != KeyHash:
		return r, fmt.Errorf("%w: key is for strategy=advisory", driver.ErrInvalid)
	case r.Strategy == StrategyTable && r.NoFence:
		return r, fmt.Errorf("%w: strategy=table has its tokens for nothing; fence=off is for advisory and row", driver.ErrInvalid)
	}
	return r, checkKeyRule(r.Key)
}

// set gives a field that was left out its default.
func set[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// New makes a backend on a pool of yours, which the backend does not close. Requests
// share it with yours; renewals, notifications and the locks of Advisory and Row have
// connections of their own, made with the pool's settings, so that a pool that is
// exhausted never loses a lock. ctx bounds the looking at the server.
func New(ctx context.Context, pool *pgxpool.Pool, o *Options) (driver.Backend, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg := pool.Config()
	d := &dialer{cfg: cfg.ConnConfig, before: cfg.BeforeConnect}
	if err := insist(func() error { return d.meet(ctx, opts) }); err != nil {
		return nil, explain(ctx, err)
	}
	return newBackend(d, d.runner(pool), func() {}, opts), nil
}

// NewDB makes a backend on a *sql.DB of yours, whatever driver it has, which the backend
// does not close. There are no notifications then: waiters ask every Options.Poll. One of
// its connections is taken for the life of each session, so it must be allowed at least
// two. Table only. ctx bounds the looking at the server.
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
	switch o.Strategy {
	case StrategyAdvisory:
		return newBound(d, pool, closePool, o, advisory{rule: o.Key})
	case StrategyRow:
		return newBound(d, pool, closePool, o, row{})
	}
	return newTable(d, pool, closePool, o)
}
