package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// goZooKeeper is the Lock of the go-zookeeper library. It has no try and does not say
// whether it is still held.
type goZooKeeper struct {
	conn *zk.Conn
	held *zk.Lock
}

func newGoZooKeeper(_ context.Context, _, address string, ttl time.Duration) (locker, string, error) {
	conn, events, err := zk.Connect([]string{address}, ttl, zk.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		return nil, "", err
	}
	go func() { // the library drops events that are not taken
		for range events {
		}
	}()
	return &goZooKeeper{conn: conn}, "go-zookeeper " + moduleVersion("github.com/go-zookeeper/zk"), nil
}

func (g *goZooKeeper) lock(name string) error {
	l := zk.NewLock(g.conn, "/locks/"+name, zk.WorldACL(zk.PermAll))
	err := l.Lock()
	g.held = l
	return err
}

func (g *goZooKeeper) try(string) (bool, error) { return false, errNone }

func (g *goZooKeeper) unlock() error {
	err := g.held.Unlock()
	if errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: Unlock: %v", errLost, err)
	}
	return err
}

func (g *goZooKeeper) check() (bool, error) { return false, errNone }

// concurrencyLock is the Mutex of etcd's own package. Its key is NAME/LEASE.
type concurrencyLock struct {
	client  *clientv3.Client
	ttl     time.Duration
	session *concurrency.Session
	held    *concurrency.Mutex
}

func newConcurrency(_ context.Context, _, address string, ttl time.Duration) (locker, string, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: time.Minute})
	return &concurrencyLock{client: c, ttl: ttl}, "etcd concurrency " + moduleVersion("go.etcd.io/etcd/client/v3"), err
}

// mutex makes a session when there is none or it has ended: the library renews it.
func (c *concurrencyLock) mutex(name string) (*concurrency.Mutex, error) {
	if c.session == nil || !c.alive() {
		s, err := concurrency.NewSession(c.client, concurrency.WithTTL(int(c.ttl/time.Second)))
		if err != nil {
			return nil, err
		}
		c.session = s
	}
	return concurrency.NewMutex(c.session, name), nil
}

func (c *concurrencyLock) alive() bool {
	select {
	case <-c.session.Done():
		return false
	default:
		return true
	}
}

func (c *concurrencyLock) lock(name string) error {
	m, err := c.mutex(name)
	if err != nil {
		return err
	}
	c.held = m
	return m.Lock(context.Background())
}

func (c *concurrencyLock) try(name string) (bool, error) {
	m, err := c.mutex(name)
	if err != nil {
		return false, err
	}
	c.held = m
	err = m.TryLock(context.Background())
	if errors.Is(err, concurrency.ErrLocked) {
		return false, nil
	}
	return err == nil, err
}

// unlock is told nothing: Unlock deletes a key that may be gone.
func (c *concurrencyLock) unlock() error { return c.held.Unlock(context.Background()) }

func (c *concurrencyLock) check() (bool, error) { return c.alive(), nil }
