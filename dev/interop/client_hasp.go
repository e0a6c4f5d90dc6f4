package main

import (
	"context"
	"errors"
	"fmt"
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

// ours is hasp's own client. The address is a store's URL; kind "read" takes the lock as
// one of many readers.
type ours struct {
	ctx    context.Context
	client *hasp.Client
	read   bool
	lease  *hasp.Lease
}

func newOurs(ctx context.Context, kind, address string, ttl time.Duration) (locker, string, error) {
	c, err := hasp.Open(ctx, address, hasp.WithTTL(ttl))
	return &ours{ctx: ctx, client: c, read: kind == "read"}, "hasp", err
}

func (o *ours) lock(name string) (err error) {
	if o.read {
		o.lease, err = o.client.RWMutex(name).RLock(o.ctx)
	} else {
		o.lease, err = o.client.Mutex(name).Lock(o.ctx)
	}
	return err
}

func (o *ours) try(name string) (_ bool, err error) {
	if o.read {
		o.lease, err = o.client.RWMutex(name).TryRLock(o.ctx)
	} else {
		o.lease, err = o.client.Mutex(name).TryLock(o.ctx)
	}
	if errors.Is(err, hasp.ErrBusy) {
		return false, nil
	}
	return err == nil, err
}

func (o *ours) token() uint64 { return o.lease.Token() }

func (o *ours) unlock() error {
	err := o.lease.Release(o.ctx)
	if errors.Is(err, hasp.ErrLost) {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return err
}

func (o *ours) check() (bool, error) {
	if o.lease.Held() {
		return true, nil
	}
	return false, fmt.Errorf("%w: %w", errLost, o.lease.Err())
}
