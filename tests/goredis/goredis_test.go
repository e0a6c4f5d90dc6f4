package goredis_test

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/goredis"
)

// As in redislock: these tests wait most of the time.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	drivertest.Main(m)
}

// owned closes the client with the backend. A program that shares its client does not; the suite
// needs a separate client for every backend, and leaves none open.
type owned struct {
	backendOfRedislock
	client redis.UniversalClient
}

// backendOfRedislock has the methods of redislock's backend.
type backendOfRedislock interface {
	driver.Backend
	driver.Watcher
	driver.Namer
	driver.Evicter
	driver.Diagnoser
}

func (o owned) Close() error { return errors.Join(o.backendOfRedislock.Close(), o.client.Close()) }

func backend(t testing.TB, client redis.UniversalClient, o *redislock.Options) driver.Backend {
	t.Helper()
	b, err := goredis.New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	return owned{b.(backendOfRedislock), client}
}

// shortTTL is as long as in redislock's tests, for the same reason.
const shortTTL = 2 * time.Second

func TestConformanceSingle(t *testing.T) {
	testtier.Long(t)
	server := backends.SharedRedis(t)
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			return backend(t, redis.NewClient(&redis.Options{Addr: server.Addr}), nil)
		},
		URL: server.URL(), // other processes use redislock's client, on the same locks
		TTL: shortTTL,
	})
}

func TestConformanceCluster(t *testing.T) {
	testtier.Long(t)
	cluster := backends.SharedRedisCluster(t)
	for _, n := range cluster.Nodes { // no failover because a master had to wait for the processor
		if _, err := n.Do("CONFIG", "SET", "cluster-node-timeout", "120000"); err != nil {
			t.Fatal(err)
		}
	}
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			return backend(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}), nil)
		},
		TTL: shortTTL,
	})
}

// With Replicas: names of many slots at once.
func TestReplicatedSlots(t *testing.T) {
	cluster := backends.SharedRedisCluster(t)
	b := backend(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}), &redislock.Options{Replicas: 1})
	c, err := hasp.New(b)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() { testkit.Release(t, testkit.Lock(t, c, fmt.Sprint("goredis", i))) })
	}
	wg.Wait()
}

// S8: a request whose answer is lost is sent once, although go-redis is set to repeat. The control
// is a request that go-redis may repeat.
func TestNoRetries(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	net := testkit.Proxy(t, server.Addr)
	client := redis.NewClient(&redis.Options{Addr: net.Addr(), MaxRetries: 5, MinRetryBackoff: -1})
	b := backend(t, client, nil)
	defer b.Close()
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Minute, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	ticket := s.Ticket(driver.Request{Name: "a", ID: "x-1", Units: driver.Whole, Capacity: driver.Whole})
	for range 2 { // the second one is known to the server by its hash
		if _, err := ticket.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	do := func(args ...string) string {
		out, err := server.Do(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	do("CONFIG", "SET", "slowlog-log-slower-than", "0") // the slow log has all commands then
	// ran counts the commands with an argument of the request, and loses the answer to one: the
	// session sends others, too.
	ran := func(argument string, request func() error) int {
		do("SLOWLOG", "RESET")
		cut := net.Lose(faultnet.Down, 1, faultnet.Contains("\r\n"+argument+"\r\n"))
		if err := request(); err == nil {
			t.Log("it was answered in the end")
		}
		<-cut
		return strings.Count(do("SLOWLOG", "GET", "100"), "\n"+argument+"\n")
	}
	if n := ran("ask", func() error { _, err := ticket.Enqueue(t.Context()); return err }); n != 1 {
		t.Errorf("the server was sent %d scripts for one Enqueue", n)
	}
	if n := ran("return 1", func() error { return client.Eval(t.Context(), "return 1", []string{"hasp:{a}"}).Err() }); n < 2 {
		t.Errorf("go-redis has sent a request %d times: it repeats nothing by itself", n)
	}
}

func TestRefusesOtherClients(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := goredis.New(ring, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a ring: %v", err)
	}
}
