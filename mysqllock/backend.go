package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Strategy is how locks are kept at the server.
type Strategy string

const (
	StrategyTable   Strategy = "table"   // first come, first served; all primitives
	StrategyGetLock Strategy = "getlock" // GET_LOCK: mutexes, as long as their connections
	StrategyRow     Strategy = "row"     // SELECT ... FOR UPDATE: mutexes, as long as their transactions
)

// Options are the settings of a store. nil or the zero value means the defaults.
type Options struct {
	// Strategy is how locks are kept at the server. Default: StrategyTable.
	Strategy Strategy

	// Prefix begins the names of all tables and procedures: a-z, 0-9 and _, at most 32,
	// beginning with no digit. All clients of a lock must agree on it. Default: "hasp_".
	Prefix string

	// Connections is how many connections locking and unlocking use at most, where they
	// are opened from a URL. Renewing has one more for each client, and waiting one, with
	// Table. With GetLock and Row it bounds the locks that are held or waited for, each of
	// which has a connection: the next acquisition waits for a connection first. Default: 8,
	// and 64 for GetLock and Row.
	Connections int

	// NoMigrate never creates tables; see driver.Migrator.
	NoMigrate bool

	// Retention is how long an unused name is remembered, for its next token. Default: a
	// day.
	Retention time.Duration

	// NoFence keeps no counters: GetLock then has no tokens, and needs no tables. Default:
	// tokens are drawn. The other strategies cannot do without their tables.
	NoFence bool

	// PlainNames has GetLock lock the very names it is given, so as to share them with
	// other programs. They are then of 1 to 64 ASCII characters without capitals, which
	// GET_LOCK does not tell from small letters, and shared by all databases of the server.
	// Default: the lock's name is a hash of database, prefix and name.
	PlainNames bool
}

const (
	defaultPrefix      = "hasp_"
	defaultConnections = 8
	defaultBound       = 64
	defaultRetention   = 24 * time.Hour
	mostConnections    = 10000
)

var plainPrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,31}$`)

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Strategy == "" {
		r.Strategy = StrategyTable
	}
	if r.Prefix == "" {
		r.Prefix = defaultPrefix
	}
	if r.Connections == 0 {
		r.Connections = defaultConnections
		if r.Strategy != StrategyTable {
			r.Connections = defaultBound
		}
	}
	if r.Retention == 0 {
		r.Retention = defaultRetention
	}
	switch {
	case r.Strategy != StrategyTable && r.Strategy != StrategyGetLock && r.Strategy != StrategyRow:
		return r, fmt.Errorf("%w: the strategy must be table, getlock or row", driver.ErrInvalid)
	case !plainPrefix.MatchString(r.Prefix):
		return r, fmt.Errorf("%w: the prefix has 1 to 32 of a-z, 0-9 and _, and does not begin with a digit", driver.ErrInvalid)
	case r.Connections < 1 || r.Connections > mostConnections:
		return r, fmt.Errorf("%w: connections (%d) must be from 1 to %d", driver.ErrInvalid, r.Connections, mostConnections)
	case r.Retention < time.Hour:
		return r, fmt.Errorf("%w: retention (%s) cannot be shorter than an hour", driver.ErrInvalid, r.Retention)
	case r.NoFence && r.Strategy != StrategyGetLock:
		return r, fmt.Errorf("%w: only the strategy getlock can do without tokens", driver.ErrInvalid)
	case r.PlainNames && r.Strategy != StrategyGetLock:
		return r, fmt.Errorf("%w: plain names are for the strategy getlock", driver.ErrInvalid)
	}
	return r, nil
}

// New makes a Backend on a pool of yours, which closing the Backend does not close. It must
// be in autocommit mode, as it is unless its DSN says otherwise, and have a database chosen.
//
// A session keeps one connection of the pool for renewals, and one more while it waits. If
// the pool is limited (SetMaxOpenConns), what it can lend must be more than that; a renewal
// whose connection has broken needs a new one at once. With GetLock and Row each lock that is
// held or waited for keeps a connection.
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
	return open(pools{work: db, kept: db, label: "mysql"}, opts), nil
}

// pools are where connections come from. kept lends those that are kept for long: they are
// not counted against the others if the pools are ours.
type pools struct {
	work, kept *sql.DB
	alarms     *connMonitors // of kept; nil for a pool of the user's
	label      string
	own        bool
}

// close ends pools that are ours. All their errors are of goodbyes that could not be sent, on
// connections that had broken while they were idle: these are as closed as the others, and nobody
// is to look for what is in order.
func (p pools) close() {
	if !p.own {
		return
	}
	_ = p.work.Close()
	if p.kept != p.work {
		_ = p.kept.Close()
	}
}

func open(p pools, o Options) driver.Backend {
	s := &store{pools: p, opts: o, passed: successOnce{turn: make(chan struct{}, 1)},
		schema: &schema{db: p.work, prefix: o.Prefix, never: o.NoMigrate, steps: migrations}}
	if o.Strategy == StrategyTable {
		return &table{store: s}
	}
	return newBound(s)
}

// store is what the strategies have in common.
type store struct {
	pools
	opts   Options
	schema *schema
	passed successOnce // the check of fit
}

func (s *store) String() string { return s.label }

// Close closes the pools that were opened from a URL.
func (s *store) Close() error {
	s.pools.close()
	return nil
}

// Schema returns the migrations, for MySQL's own shell.
func (s *store) Schema() string { return s.schema.text() }

// Migrate creates what is missing, whatever Options.NoMigrate says: it was asked for.
func (s *store) Migrate(ctx context.Context) (from, to int, err error) { return s.schema.migrate(ctx) }

// named puts the prefix into a statement.
func (s *store) named(text string, args ...any) string {
	return statement(s.schema.named(text), args...)
}

// fit checks, once, what no lock can do without: autocommit, and the tables.
func (s *store) fit(ctx context.Context) error {
	return s.passed.do(ctx, func() error {
		var autocommit bool
		var database sql.NullString
		if err := row(ctx, s.work, "SELECT @@autocommit, DATABASE()", &autocommit, &database); err != nil {
			return err
		}
		switch {
		case !autocommit:
			return fmt.Errorf("%w: the pool's connections are not in autocommit mode", driver.ErrInvalid)
		case !database.Valid:
			return fmt.Errorf("%w: no database is chosen: name it in the URL's path, or in the pool's DSN", driver.ErrInvalid)
		case s.opts.NoFence:
			return nil
		}
		return s.schema.ready(ctx)
	})
}
