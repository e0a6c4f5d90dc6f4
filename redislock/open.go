package redislock

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
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
}

// The strategies: how locks are kept at the server.
const (
	StrategyQueue    = "queue"    // first come, first served; all primitives; hasp's own format
	StrategySetNX    = "setnx"    // SET NX PX: shares mutexes with redsync, redislock, node-redlock, redis-py
	StrategyRedisson = "redisson" // a hash: shares mutexes with Redisson's RLock
)

// FenceOff is the Options.Fence that keeps no counters: the locks then have no tokens.
const FenceOff = "off"

// Options are the settings of a store. nil or the zero value means the defaults.
type Options struct {
	// Strategy is Queue, SetNX or Redisson. Default: Queue.
	Strategy string

	// Prefix begins every key. Default: "hasp:" for Queue, nothing for the others, which
	// share their keys with other libraries.
	Prefix string

	// Fence begins the keys of the counters that tokens are drawn from, for SetNX and
	// Redisson, or is FenceOff. Default: "hasp:lock:t:".
	Fence string

	// Replicas that must have an acquisition before it counts (WAIT). It makes losing a lock by a failover
	// unlikely, not impossible. Default: 0, nobody is waited for.
	Replicas int

	// Retention is how long an unused name is remembered, for its next token. Default: a
	// day.
	Retention time.Duration
}

const (
	defaultPrefix    = "hasp:"
	defaultFence     = setnx.CompanionPrefix + "t:"
	defaultRetention = 24 * time.Hour
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
	if r.Fence == "" {
		r.Fence = defaultFence
	}
	if r.Retention == 0 {
		r.Retention = defaultRetention
	}
	switch {
	case r.Strategy != StrategyQueue && r.Strategy != StrategySetNX && r.Strategy != StrategyRedisson:
		return r, fmt.Errorf("%w: the strategy must be queue, setnx or redisson", driver.ErrInvalid)
	case r.Strategy == StrategyQueue && r.Fence != defaultFence:
		return r, fmt.Errorf("%w: fence is for the strategies setnx and redisson; a queue has its own tokens", driver.ErrInvalid)
	case !plainPrefix.MatchString(r.Fence):
		return r, fmt.Errorf("%w: fence has 1 to 64 letters, digits and _ . : / -", driver.ErrInvalid)
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

// Open makes a backend on a client of yours, which the backend does not close. Its
// requests run beside yours.
func New(client rueidis.Client, o *Options) (driver.Backend, error) {
	return OpenConn(redisconn.FromRueidis(client), o)
}

// OpenConn is for adapters to other client libraries; see redislock/goredis.
func OpenConn(conn redisconn.Conn, o *Options) (driver.Backend, error) {
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

func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	p := driver.NewParams(u.Query())
	o := Options{
		Strategy:  p.OneOf("strategy", StrategyQueue, StrategySetNX, StrategyRedisson),
		Prefix:    p.String("prefix", ""),
		Fence:     fence(p),
		Replicas:  p.Int("wait", 0, 0, 100),
		Retention: p.Duration("retention", defaultRetention),
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
	return OpenConn(conn, &o)
}

// fence reads what other stores spell fence=on and fence=off, and here may be a prefix as well.
// A word that looks like one of the two must not become the beginning of a key.
func fence(p *driver.Params) string {
	switch v := p.String("fence", ""); v {
	case "on":
		return defaultFence
	case "true", "false", "yes", "no", "1", "0":
		return p.OneOf("fence", "on", FenceOff, "PREFIX") // refused
	default:
		return v
	}
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
