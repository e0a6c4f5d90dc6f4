package mysqllock

import (
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
)

// leastOfPool is how many connections a pool must be able to lend: for a request beside a lock's
// own connection, or beside a session's renewals and its waiting.
func (s Strategy) leastOfPool() int {
	if s == StrategyGetLock {
		return 2
	}
	return 3
}

// Options are the settings of a store. nil or the zero value means the defaults.
type Options struct {
	// Strategy is how locks are kept at the server. Default: StrategyTable.
	Strategy Strategy

	// Prefix begins the names of all tables and procedures: a-z, 0-9 and _, at most 32,
	// beginning with no digit. All clients of a lock must agree on it. Default: "hasp_".
	Prefix string

	// Connections is how many connections locking and unlocking use at most, where they
	// are opened from a URL. Renewing has one more for each client, and waiting one, with
	// Table. With GetLock it bounds the locks that are held or waited for, each of
	// which has a connection: the next acquisition waits for a connection first. Default: 8,
	// and 64 for GetLock.
	Connections int

	// NoMigrate never creates tables; see driver.Migrator.
	NoMigrate bool

	// Retention is how long an unused name is remembered, for its next token. Default: a
	// day.
	Retention time.Duration

	// NoFence keeps no counters: GetLock then has no tokens, and needs no tables. Default:
	// tokens are drawn. Table cannot do without its tables.
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
	case r.Strategy != StrategyTable && r.Strategy != StrategyGetLock:
		return r, fmt.Errorf("%w: the strategy must be table or getlock", driver.ErrInvalid)
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
