package redislock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock"
)

// With wait=1 in a cluster: names of many slots at once, over a client of the driver and over one
// of the program's. (The connection that waited for replicas was bound to one slot, and the process
// ended at the first name of a second one.)
func TestReplicatedSlots(t *testing.T) {
	t.Parallel()
	storeURL := clusterURL(t)
	own, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: strings.Split(strings.TrimPrefix(storeURL, "redis://"), ","), DisableCache: true,
	})
	must(t, err)
	t.Cleanup(own.Close)
	for _, strategy := range []redislock.Strategy{redislock.StrategyQueue, redislock.StrategySetNX, redislock.StrategyRedisson} {
		backend, err := redislock.New(own, &redislock.Options{Strategy: strategy, Replicas: 1})
		must(t, err)
		ofProgram, err := hasp.New(backend, hasp.WithTTL(calm))
		must(t, err)
		t.Cleanup(func() { ofProgram.Close() })
		for kind, c := range map[string]*hasp.Client{"url": client(t, with(storeURL, "wait=1&strategy="+string(strategy))), "program's": ofProgram} {
			t.Run(string(strategy)+" "+kind, func(t *testing.T) {
				t.Parallel()
				var wg sync.WaitGroup
				for i := range 60 {
					wg.Go(func() {
						ctx := testkit.Context(t)
						l, err := c.Mutex(fmt.Sprint(strategy, kind, i)).Lock(ctx)
						if err == nil {
							err = l.Release(ctx)
						}
						if err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				var held []*hasp.Lease
				for i := range 20 {
					held = append(held, testkit.Lock(t, c, fmt.Sprint(strategy, kind, i)))
				}
				renewed(t, held[0])
				for _, l := range held {
					testkit.Release(t, l)
				}
			})
		}
	}
}

// A slot moves to another master while its locks are held with wait=1. They are renewed when their
// keys have moved and the slot has not (ASK), and when it has (MOVED); the server that has them now
// confirms it.
func TestReplicatedSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := backends.StartRedisCluster(t)
	for _, n := range cluster.Nodes {
		do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000")
	}
	c := client(t, "redis://"+strings.Join(cluster.Addrs(), ",")+"?wait=1")
	l, others := testkit.Lock(t, c, "a"), testkit.Lock(t, c, "b")
	m := move(t, cluster, "hasp:{a}")
	renewed(t, l)
	m.keys(t)
	renewed(t, l) // perhaps by an answer that was on its way
	renewed(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	next, err := c.Mutex("new{a}").Lock(ctx) // of no key of the slot but the mark
	must(t, err)
	m.end(t)
	renewed(t, l)
	for _, l := range []*hasp.Lease{l, next, others} {
		testkit.Release(t, l)
	}
}

// A master that is cut off from its replica confirms no renewal, also if the last name of a renewal
// has gone meanwhile and nothing is written for it: since Redis 7.2 WAIT counts the last write of
// its connection.
func TestReplicatedRenewals(t *testing.T) {
	t.Parallel()
	cluster := backends.StartRedisCluster(t)
	r := clusterShard(t, cluster)
	storeURL := "redis://" + strings.Join(cluster.Addrs(), ",") + "?wait=1"
	for range 5 { // the connections of the pool have written before
		testkit.Release(t, testkit.Lock(t, client(t, storeURL), "a"))
	}
	s := session(t, testkit.Open(t, storeURL), time.Minute)
	var last string
	held := 0
	for i := range 30 {
		name := fmt.Sprint("name", 10+i)
		if out, err := r.master.Do("EXISTS", "hasp:{"+name+"}"); err != nil || out != "0" {
			continue // another master's
		}
		held++
		last = name
		testkit.Held(t, s.Ticket(testkit.Request(name)))
	}
	renew := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), slack)
		defer cancel()
		_, err := s.KeepAlive(ctx)
		return err
	}
	must(t, renew())
	r.loseReplica(t)
	for range min(held, 3) {
		if err := renew(); err == nil {
			t.Fatal("renewed, and the replica has not confirmed it")
		}
		do(t, r.master, "DEL", "hasp:{"+last+"}")
	}
	must(t, r.replica.Resume())
	linked(t, r.replica)
	testkit.Eventually(t, "a confirmed renewal", func() bool { return renew() == nil })
}
