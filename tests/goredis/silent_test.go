package goredis_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

// A stopped node of a cluster costs the locks that it has, and no others, with this client as
// with redislock's.
func TestRenewalWithoutANode(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	cluster := backends.StartRedisCluster(t)
	for _, n := range cluster.Nodes { // no failover
		if _, err := n.Do("CONFIG", "SET", "cluster-node-timeout", "120000"); err != nil {
			t.Fatal(err)
		}
	}
	b := backend(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}), nil)
	defer b.Close()
	const n, ttl = 300, 2 * time.Minute
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(id string, err error) { t.Errorf("%s is gone: %v", id, err) }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r := driver.Request{Name: fmt.Sprint("n", i), ID: fmt.Sprint("id-", i), Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()}
		if v, err := s.Ticket(r).Enqueue(t.Context()); err != nil || !v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	if err := cluster.Nodes[1].Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	_, err = s.KeepAlive(ctx)
	var partial *driver.PartialRenewal
	if !errors.As(err, &partial) || len(partial.Late) < n/6 || len(partial.Late) > n/2 || partial.Granted != ttl {
		t.Errorf("a third of %d locks are on the node: %v", n, err)
	}
	if err := cluster.Nodes[1].Resume(); err != nil {
		t.Fatal(err)
	}
}
