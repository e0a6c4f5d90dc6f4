package main

import (
	"context"
	"time"

	"github.com/hasplock/hasp"

	_ "github.com/hasplock/hasp/etcdlock"
	_ "github.com/hasplock/hasp/filelock"
	_ "github.com/hasplock/hasp/mysqllock"
	_ "github.com/hasplock/hasp/pglock"
	_ "github.com/hasplock/hasp/redislock"
	_ "github.com/hasplock/hasp/redislock/redlock"
	_ "github.com/hasplock/hasp/zklock"
)

// ttl is the TTL of every contestant that has one.
const ttl = 10 * time.Second

// haspOn is hasp, as its README says, at a store's URL.
func haspOn(name, storeURL string, opts ...hasp.LockOption) contestant {
	return contestant{name: name, role: ours, url: storeURL, open: func(ctx context.Context) (client, error) {
		c, err := hasp.Open(ctx, storeURL, hasp.WithTTL(ttl))
		if err != nil {
			return client{}, err
		}
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				l, err := c.Mutex(name, opts...).Lock(ctx)
				if err != nil {
					return nil, err
				}
				return func() error { return l.Release(context.WithoutCancel(ctx)) }, nil
			},
			close: func() { c.Close() },
		}, nil
	}}
}
