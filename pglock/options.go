package pglock

import (
	"fmt"
	"regexp"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Strategy is how locks are kept at the server.
type Strategy string

const (
	StrategyTable    Strategy = "table"    // queues in tables: first come, first served; all primitives; leases
	StrategyAdvisory Strategy = "advisory" // pg_advisory_lock on separate connections: shares mutexes with others
)

// Options are the settings of a store. nil or the zero value means the defaults.
type Options struct {
	// Strategy is how locks are kept at the server. Default: StrategyTable.
	Strategy Strategy

	// Schema has hasp's tables. It is created if it is missing and the role may.
	// Default: "public". search_path is not used: roles with different paths would use
	// different tables, and not exclude each other.
	Schema string

	// Prefix begins the names of tables and functions. Default: "hasp_".
	Prefix string

	// NoMigrate has nothing created at the first use; `hasp migrate` does it then.
	NoMigrate bool

	// Connections bounds the pool that a URL opens. Each session has one more, for renewals
	// and notifications; Advisory has one more for each lock and waiter. Default: 8.
	Connections int

	// Poll is how often the first waiter asks where notifications do not arrive: behind a
	// pool that hands connections out for a transaction, and over a *sql.DB. Default: 100 ms.
	Poll time.Duration

	// NoListen has waiters ask, also where notifications arrive. Where a pool stands before the
	// server, they are tested for in any case: that tells of what kind the pool is.
	NoListen bool

	// Retention is how long an unused name is remembered, for its next token. Default: a
	// day.
	Retention time.Duration

	// Key is the rule that makes a name into the number of an advisory lock: KeyHash, the
	// default, is 64 bits of SHA-256; the others share locks with other programs. For
	// Advisory only.
	Key string

	// Slice is for how long a waiter of Advisory waits in one transaction: vacuum and CREATE INDEX
	// CONCURRENTLY wait for that one to end. It must be shorter than the server's deadlock_timeout
	// (1 s by default), or such a statement on a connection that has the lock may be taken for a
	// deadlock. From 10 ms. Default: 250 ms.
	Slice time.Duration

	// DurableRelease has releases of Table wait for the server's disk, as grants do. Without it a
	// crash of the server can forget a release of its last moments: the lock then stays taken until
	// the next renewal of the client that released it, or until its TTL is over.
	DurableRelease bool

	// NoFence draws no tokens, which lets Advisory work without tables.
	NoFence bool
}

const (
	defaultPrefix      = "hasp_"
	defaultSchema      = "public"
	defaultConnections = 8
	defaultPoll        = 100 * time.Millisecond
	defaultRetention   = 24 * time.Hour
	defaultSlice       = 250 * time.Millisecond
)

// plainName matches an SQL identifier here. A prefix leaves room for what follows
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
	set(&r.Slice, defaultSlice)
	switch {
	case r.Strategy != StrategyTable && r.Strategy != StrategyAdvisory:
		return r, fmt.Errorf("%w: the strategy must be table or advisory", driver.ErrInvalid)
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
	case r.Slice < 10*time.Millisecond:
		return r, fmt.Errorf("%w: slice (%s) cannot be shorter than 10ms", driver.ErrInvalid, r.Slice)
	case r.Strategy != StrategyAdvisory && r.Key != KeyHash:
		return r, fmt.Errorf("%w: key is for strategy=advisory", driver.ErrInvalid)
	case r.Strategy != StrategyTable && r.DurableRelease:
		return r, fmt.Errorf("%w: durable_release is for strategy=table; with advisory a release writes nothing", driver.ErrInvalid)
	case r.Strategy == StrategyTable && r.NoFence:
		return r, fmt.Errorf("%w: with strategy=table tokens cost nothing, and cannot be switched off; fence=off is for advisory", driver.ErrInvalid)
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
