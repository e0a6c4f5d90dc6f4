package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// rueidisLock sends the requests of rueidislock with a majority of one: its module is not at the Go
// proxy. The lock is a context that ends when an extension fails or its time is over. Where the
// library waits for the server to say that the key has changed, this looks every retryPause.
type rueidisLock struct {
	client *redis.Client
	ttl    time.Duration
	held   context.Context
	leave  func() error // gives it back, once the extensions have ended
}

func newRueidislock(_ context.Context, _, address string, ttl time.Duration) (locker, string, error) {
	client := redis.NewClient(&redis.Options{
		Addr: address, DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
		ContextTimeoutEnabled: true, // an extension that is not answered in time ends the lock
	})
	return &rueidisLock{client: client, ttl: ttl}, "the requests of rueidislock", nil
}

const (
	rueidisExtend = `if redis.call("GET",KEYS[1]) == ARGV[1] then return redis.call("PEXPIREAT",KEYS[1],ARGV[2]) else return 0 end`
	rueidisDelete = `if redis.call("GET",KEYS[1]) == ARGV[1] then return redis.call("DEL",KEYS[1]) else return 0 end`
)

func (r *rueidisLock) lock(name string) error {
	for {
		if ok, err := r.try(name); ok || err != nil {
			return err
		}
		time.Sleep(retryPause)
	}
}

func (r *rueidisLock) try(name string) (bool, error) {
	key, me, until := "rueidislock:0:"+name, rand.Text(), time.Now().Add(r.ttl)
	err := r.client.Do(context.Background(), "SET", key, me, "NX", "PXAT", until.UnixMilli()).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	held, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		r.extend(held, key, me, until)
	}()
	r.held, r.leave = held, func() error {
		cancel()
		<-ended
		return r.client.Eval(context.Background(), rueidisDelete, []string{key}, me).Err()
	}
	return true, nil
}

// extend returns when the lock is given back, or is not extended in time.
func (r *rueidisLock) extend(held context.Context, key, me string, until time.Time) {
	for {
		select {
		case <-time.After(r.ttl / 2):
		case <-held.Done():
			return
		}
		until = until.Add(r.ttl / 2)
		ctx, cancel := context.WithDeadline(held, until)
		n, err := r.client.Eval(ctx, rueidisExtend, []string{key}, me, until.UnixMilli()).Int()
		cancel()
		if err != nil || n != 1 {
			return
		}
	}
}

func (r *rueidisLock) unlock() error {
	lost := r.held.Err()
	if err := r.leave(); err != nil {
		return err
	}
	if lost != nil {
		return fmt.Errorf("%w: the context: %w", errLost, lost)
	}
	return nil
}

func (r *rueidisLock) check() (bool, error) { return r.held.Err() == nil, nil }
