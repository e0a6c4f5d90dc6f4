package redislock

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/setnx"
)

func init() {
	for scheme := range redisconn.Schemes {
		driver.Register(scheme, openURL)
	}
	redisconn.NewBackend = func(conn redisconn.Conn, o any) (driver.Backend, error) { return newBackend(conn, o.(*Options)) }
}

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

	// Replicas that must have an acquisition before it counts (WAIT). It makes losing a lock by a failover
	// unlikely, not impossible. Default: 0, nobody is waited for.
	Replicas int

	// Retention is how long an unused name is remembered, for its next token. Default: a
	// day.
	Retention time.Duration
}

const (
	defaultPrefix      = "hasp:"
	defaultFencePrefix = setnx.CompanionPrefix + "t:"
	defaultRetention   = 24 * time.Hour
)

// plainPrefix has no braces, which would move the hash tag, and nothing that means
// something in a pattern of SCAN.
var plainPrefix = regexp.MustCompile(`^[A-Za-z0-9_.:/-]{1,64}$`)

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Strategy == "" {
		r.Strategy = StrategyQueue
	}
	if r.Prefix == "" && r.Strategy == StrategyQueue {
		r.Prefix = defaultPrefix
	}
	if r.FencePrefix == "" {
		r.FencePrefix = defaultFencePrefix
	}
	if r.Retention == 0 {
		r.Retention = defaultRetention
	}
	switch {
	case r.Strategy != StrategyQueue && r.Strategy != StrategySetNX && r.Strategy != StrategyRedisson:
		return r, fmt.Errorf("%w: the strategy must be queue, setnx or redisson", driver.ErrInvalid)
	case r.Strategy == StrategyQueue && (r.NoFence || r.FencePrefix != defaultFencePrefix):
		return r, fmt.Errorf("%w: fence is for the strategies setnx and redisson; a queue has its own tokens", driver.ErrInvalid)
	case !plainPrefix.MatchString(r.FencePrefix):
		return r, fmt.Errorf("%w: the fence prefix has 1 to 64 letters, digits and _ . : / -", driver.ErrInvalid)
	case r.Prefix != "" && !plainPrefix.MatchString(r.Prefix):
		return r, fmt.Errorf("%w: the prefix has 1 to 64 letters, digits and _ . : / -", driver.ErrInvalid)
	case r.Replicas < 0:
		return r, fmt.Errorf("%w: the number of replicas cannot be negative", driver.ErrInvalid)
	case r.Retention < time.Hour:
		return r, fmt.Errorf("%w: retention (%s) cannot be shorter than an hour", driver.ErrInvalid, r.Retention)
	case r.Retention > longest:
		return r, fmt.Errorf("%w: retention (%s) cannot be longer than ten years", driver.ErrInvalid, r.Retention)
	}
	return r, nil
}

// longest bounds what is added to the server's time: moments are microseconds, which the
// scripts can count until the year 2255.
const longest = 10 * 365 * 24 * time.Hour

// keepMargin is how much longer than its entries a name is kept, at the least.
const keepMargin = time.Minute

// keep is how long a name is remembered that a session uses, in milliseconds: for the retention,
// and longer than any entry can live in it that is not renewed. What another client has asked
// for stays if it is more; the scripts see to that.
func (o *Options) keep(ttl time.Duration) (string, error) {
	if ttl > longest {
		return "", fmt.Errorf("%w: the TTL (%s) cannot be longer than ten years", driver.ErrInvalid, ttl)
	}
	return millis(max(o.Retention, ttl+keepMargin)), nil
}

// New makes a backend on a client of yours, which the backend does not close. Its requests run
// beside yours. For a client of go-redis see package goredis.
func New(client rueidis.Client, o *Options) (driver.Backend, error) {
	return newBackend(redisconn.FromRueidis(client), o)
}

func newBackend(conn redisconn.Conn, o *Options) (driver.Backend, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	switch opts.Strategy {
	case StrategySetNX:
		return newAttempts(conn, opts, setNX), nil
	case StrategyRedisson:
		return newAttempts(conn, opts, redisson), nil
	}
	return newQueue(conn, opts), nil
}

// Open connects to the store that a URL names; the package comment has its parameters. ctx bounds
// the connecting only. It is for programs that want the backend itself: hasp.Open makes a client,
// and takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, slices.Collect(maps.Keys(redisconn.Schemes))...)
}

func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	p := driver.NewParams(u.Query())
	o := Options{
		Strategy:    driver.OneOf(p, "strategy", StrategyQueue, StrategySetNX, StrategyRedisson),
		Prefix:      p.String("prefix", ""),
		FencePrefix: p.String("fence_prefix", ""),
		NoFence:     driver.OneOf(p, "fence", "on", "off") == "off",
		Replicas:    p.Int("wait", 0, 0, 100),
		Retention:   p.Duration("retention", defaultRetention),
	}
	cfg, err := redisconn.Parse(u, p, redisconn.Schemes[u.Scheme])
	if err == nil {
		err = p.Err()
	}
	if err == nil {
		o, err = o.withDefaults()
	}
	if err != nil {
		return nil, err
	}
	conn, err := redisconn.Open(ctx, cfg)
	if err != nil {
		return nil, redisconn.Refusal(err)
	}
	if err := refuseReplica(ctx, conn); err != nil {
		conn.Close()
		return nil, err
	}
	return newBackend(conn, &o)
}

// refuseReplica is for URLs that name a replica: locks there would be refused, or, where it
// is writable, forgotten. A server that does not tell its role is taken as it is.
func refuseReplica(ctx context.Context, conn redisconn.Conn) error {
	return conn.Each(ctx, func(n redisconn.Node) error {
		r := n.Do(ctx, "ROLE")
		if role, _ := r.Value.([]any); r.Err == nil && len(role) > 0 && role[0] == "slave" {
			return fmt.Errorf("%w: %s is a replica; name its master, or the Sentinel set with sentinel=NAME", driver.ErrInvalid, n.Addr())
		}
		return ctx.Err()
	})
}
