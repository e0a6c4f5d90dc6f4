package redislock

import (
	"context"
	"maps"
	"net/url"
	"slices"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

func init() {
	for scheme := range redisconn.Schemes {
		driver.Register(scheme, openURL)
	}
	redisconn.NewBackend = func(conn redisconn.Conn, o any) (driver.Backend, error) { return newBackend(conn, o.(*Options)) }
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
		return newOneKey(conn, opts, setNX), nil
	case StrategyRedisson:
		return newOneKey(conn, opts, redisson), nil
	}
	return &queue{newStore(conn, opts.Prefix, opts)}, nil
}

// Open connects to the store that a URL names; docs/backends/redis.md has its parameters. ctx
// bounds the connecting only. It is for programs that want the backend itself: hasp.Open makes a
// client, and takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, slices.Collect(maps.Keys(redisconn.Schemes))...)
}

func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	p := driver.NewParams(u.Query())
	o := Options{
		Strategy:     driver.OneOf(p, "strategy", StrategyQueue, StrategySetNX, StrategyRedisson),
		Prefix:       p.String("prefix", ""),
		FencePrefix:  p.String("fence_prefix", ""),
		NoFence:      driver.OneOf(p, "fence", "on", "off") == "off",
		NoQuarantine: driver.OneOf(p, "quarantine", "on", "off") == "off",
		Replicas:     p.Int("wait", 0, 0, 100),
		Retention:    p.Duration("retention", defaultRetention),
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
	err = conn.Each(ctx, func(n redisconn.Node) error {
		_, err := redisconn.Meet(ctx, n, ": it refuses locks or, if it is writable, forgets them; name its master, or the Sentinel set with sentinel=NAME")
		return err
	})
	if err != nil {
		conn.Close()
		return nil, redisconn.Refusal(err)
	}
	return newBackend(conn, &o)
}
