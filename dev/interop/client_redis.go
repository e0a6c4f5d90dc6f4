package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgo "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// patientClient waits for answers as long as a machine that is busy needs for them.
func patientClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience})
}

// redsyncLock is redsync on one server or, Redlock, on several.
type redsyncLock struct {
	rs   *redsync.Redsync
	ttl  time.Duration
	held *redsync.Mutex
}

func newRedsync(_ context.Context, _, address string, ttl time.Duration) (locker, string, error) {
	var pools []redsyncredis.Pool
	for addr := range strings.SplitSeq(address, ",") {
		pools = append(pools, redsyncgo.NewPool(patientClient(addr)))
	}
	return &redsyncLock{rs: redsync.New(pools...), ttl: ttl}, "redsync " + moduleVersion("github.com/go-redsync/redsync/v4"), nil
}

func (r *redsyncLock) take(name string, tries int) error {
	m := r.rs.NewMutex(name, redsync.WithExpiry(r.ttl), redsync.WithTries(tries), redsync.WithRetryDelay(retryPause),
		redsync.WithTimeoutFactor(0.5)) // of the expiry for a request; 0.05 would be 150 ms
	err := m.Lock()
	if err == nil {
		r.held = m
	}
	return err
}

func (r *redsyncLock) lock(name string) error { return r.take(name, math.MaxInt32) }

func (r *redsyncLock) try(name string) (bool, error) {
	err := r.take(name, 1)
	if errors.As(err, new(*redsync.ErrTaken)) || errors.Is(err, redsync.ErrFailed) {
		return false, nil
	}
	return err == nil, err
}

func (r *redsyncLock) unlock() error {
	if ok, err := r.held.Unlock(); !ok {
		return fmt.Errorf("%w: Unlock: %v", errLost, err)
	}
	return nil
}

func (r *redsyncLock) check() (bool, error) { return time.Now().Before(r.held.Until()), nil }

// bsmLock is bsm/redislock.
type bsmLock struct {
	client *bsm.Client
	ttl    time.Duration
	held   *bsm.Lock
}

func newBSM(_ context.Context, _, address string, ttl time.Duration) (locker, string, error) {
	return &bsmLock{client: bsm.New(patientClient(address)), ttl: ttl}, "bsm/redislock " + moduleVersion("github.com/bsm/redislock"), nil
}

func (b *bsmLock) lock(name string) error {
	// Without a deadline of the context Obtain gives up after one TTL.
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	l, err := b.client.Obtain(ctx, name, b.ttl, &bsm.Options{RetryStrategy: bsm.LinearBackoff(retryPause)})
	b.held = l
	return err
}

func (b *bsmLock) try(name string) (bool, error) {
	l, err := b.client.Obtain(context.Background(), name, b.ttl, nil)
	if errors.Is(err, bsm.ErrNotObtained) {
		return false, nil
	}
	b.held = l
	return err == nil, err
}

func (b *bsmLock) unlock() error {
	err := b.held.Release(context.Background())
	if errors.Is(err, bsm.ErrLockNotHeld) {
		return fmt.Errorf("%w: Release: %v", errLost, err)
	}
	return err
}

func (b *bsmLock) check() (bool, error) {
	left, err := b.held.TTL(context.Background())
	return left > 0, err
}

// blind is the control that excludes no client: it reports every lock as acquired.
type blind struct{}

func newBlind(context.Context, string, string, time.Duration) (locker, string, error) {
	return blind{}, "a client without a lock", nil
}

func (blind) lock(string) error        { return nil }
func (blind) try(string) (bool, error) { return true, nil }
func (blind) unlock() error            { return nil }
func (blind) check() (bool, error)     { return true, nil }

// blunt is the control that deletes the key without a check when it unlocks, as the simplest
// hand-written Redis locks do: after a lease that was shorter than the work it frees another
// client's lock.
type blunt struct {
	client *redis.Client
	ttl    time.Duration
	name   string
}

func newBlunt(_ context.Context, _, address string, ttl time.Duration) (locker, string, error) {
	return &blunt{client: patientClient(address), ttl: ttl}, "SET NX and DEL", nil
}

func (b *blunt) lock(name string) error {
	for {
		if ok, err := b.try(name); ok || err != nil {
			return err
		}
		time.Sleep(retryPause)
	}
}

func (b *blunt) try(name string) (bool, error) {
	err := b.client.SetArgs(context.Background(), name, "me", redis.SetArgs{Mode: "NX", TTL: b.ttl}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	b.name = name
	return err == nil, err
}

func (b *blunt) unlock() error        { return b.client.Del(context.Background(), b.name).Err() }
func (b *blunt) check() (bool, error) { return false, errNone }
