package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// Strategy is how locks are kept at the server.
type Strategy string

const (
	StrategyQueue    Strategy = "queue"    // first come, first served; all primitives; hasp's own format
	StrategySetNX    Strategy = "setnx"    // SET NX PX: shares mutexes with redsync, redislock, node-redlock, redis-py
	StrategyRedisson Strategy = "redisson" // a hash: shares mutexes with Redisson's RLock
)

// Options are the settings of a store. nil or the zero value means the defaults.
type Options struct {
	// Strategy is how locks are kept at the server. Default: StrategyQueue.
	Strategy Strategy

	// Prefix begins every key. Default: "hasp:" for StrategyQueue, nothing for the others,
	// which share their keys with other libraries.
	Prefix string

	// FencePrefix begins the keys of the counters that tokens are drawn from, for
	// StrategySetNX and StrategyRedisson. Default: "hasp:lock:t:".
	FencePrefix string

	// NoFence keeps no counters: the locks of StrategySetNX and StrategyRedisson then have no
	// tokens. Default: tokens are drawn.
	NoFence bool

	// Replicas that must have an acquisition before it counts (WAIT), and with StrategyQueue each
	// renewal: the locks of a master that has lost its replicas end. With less than half of all
	// replicas a master that was replaced may still have enough of them, and two may hold. Default:
	// 0, none.
	Replicas int

	// NoQuarantine grants locks at a server that may have forgotten earlier ones. Default: such a
	// server grants nothing until the longest TTL in use there is over, of which an emptied server
	// knows only that of the client that comes first: give all clients one TTL. With StrategySetNX
	// and StrategyRedisson that binds hasp's clients only: other libraries do not wait.
	NoQuarantine bool

	// Retention is how long an unused name is remembered, for its next token. Default: a
	// day.
	Retention time.Duration
}

const (
	defaultPrefix      = "hasp:"
	defaultFencePrefix = setnx.CompanionPrefix + "t:"
	defaultRetention   = 24 * time.Hour
)

// validPrefix has no braces, which would move the hash tag, and no special characters of SCAN's
// patterns.
var validPrefix = regexp.MustCompile(`^[A-Za-z0-9_.:/-]{1,64}$`)

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	r.Strategy = cmp.Or(r.Strategy, StrategyQueue)
	r.FencePrefix = cmp.Or(r.FencePrefix, defaultFencePrefix)
	r.Retention = cmp.Or(r.Retention, defaultRetention)
	if r.Prefix == "" && r.Strategy == StrategyQueue {
		r.Prefix = defaultPrefix
	}
	switch {
	case r.Strategy != StrategyQueue && r.Strategy != StrategySetNX && r.Strategy != StrategyRedisson:
		return r, fmt.Errorf("%w: the strategy must be queue, setnx or redisson", driver.ErrInvalid)
	case r.Strategy == StrategyQueue && (r.NoFence || r.FencePrefix != defaultFencePrefix):
		return r, fmt.Errorf("%w: fence is for the strategies setnx and redisson; a queue has its own tokens", driver.ErrInvalid)
	case !validPrefix.MatchString(r.FencePrefix):
		return r, fmt.Errorf("%w: the fence prefix has 1 to 64 letters, digits and _ . : / -", driver.ErrInvalid)
	case r.Prefix != "" && !validPrefix.MatchString(r.Prefix):
		return r, fmt.Errorf("%w: the prefix has 1 to 64 letters, digits and _ . : / -", driver.ErrInvalid)
	case r.Replicas < 0:
		return r, fmt.Errorf("%w: the number of replicas cannot be negative", driver.ErrInvalid)
	case r.Retention < time.Hour:
		return r, fmt.Errorf("%w: retention (%s) cannot be shorter than an hour", driver.ErrInvalid, r.Retention)
	case r.Retention > maxDuration:
		return r, fmt.Errorf("%w: retention (%s) cannot be longer than ten years", driver.ErrInvalid, r.Retention)
	}
	return r, nil
}

// maxDuration bounds the durations that are added to the server's time: moments are
// microseconds, which the scripts can count until the year 2255.
const maxDuration = 10 * 365 * 24 * time.Hour

// retentionMargin is how much longer than its entries a name is kept, at the least.
const retentionMargin = time.Minute

// keep is how long a name is remembered that a session uses, in milliseconds: for the retention,
// and longer than an entry lives that is not renewed. The scripts never shorten what another
// client has asked for.
func (o *Options) keep(ttl time.Duration) (string, error) {
	if ttl > maxDuration {
		return "", fmt.Errorf("%w: the TTL (%s) cannot be longer than ten years", driver.ErrInvalid, ttl)
	}
	return millis(max(o.Retention, ttl+retentionMargin)), nil
}

// mayWait refuses a user without the right to WAIT, if grants are to be confirmed by replicas: each
// would be repeated for a TTL, while its entry keeps the name taken. It asks one server. No answer is
// no refusal.
func (o *Options) mayWait(ctx context.Context, conn redisconn.Conn) error {
	if o.Replicas == 0 {
		return nil
	}
	err := conn.Each(ctx, func(n redisconn.Node) error {
		return cmp.Or(redisconn.Refusal(n.Do(ctx, "WAIT", "0", "1").Err), errAsked) // for none: the answer comes at once
	})
	if redisconn.Answered(err) == "NOPERM" {
		return err
	}
	return nil
}

var errAsked = errors.New("one server has answered")
