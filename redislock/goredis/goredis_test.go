package goredis_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/goredis"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

// owned closes the client with the backend. A program that shares its client would not; the
// suite wants every backend to have one of its own, and none left behind.
type owned struct {
	whole
	client redis.UniversalClient
}

// whole is what a backend of redislock can do.
type whole interface {
	driver.Backend
	driver.Watcher
	driver.Namer
	driver.Evicter
	driver.Diagnoser
}

func (o owned) Close() error { return errors.Join(o.whole.Close(), o.client.Close()) }

func backend(t testing.TB, client redis.UniversalClient, o *redislock.Options) driver.Backend {
	t.Helper()
	b, err := goredis.Open(client, o)
	if err != nil {
		t.Fatal(err)
	}
	return owned{b.(whole), client}
}

func TestConformanceSingle(t *testing.T) {
	server := backends.SharedRedis(t)
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			return backend(t, redis.NewClient(&redis.Options{Addr: server.Addr}), nil)
		},
		URL: server.URL(), // other processes use redislock's own client, on the same locks
	})
}

func TestConformanceCluster(t *testing.T) {
	cluster := backends.SharedRedisCluster(t)
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			return backend(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}), nil)
		},
	})
}

// S8: a request that go-redis was set to repeat is sent once. The server is stopped, so
// that every answer fails to come.
func TestNoRetries(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr, MaxRetries: 5, ReadTimeout: 200 * time.Millisecond, MinRetryBackoff: -1,
	})
	b := backend(t, client, nil)
	defer b.Close()
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: 10 * time.Second, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	ticket := s.Ticket(driver.Request{Name: "a", ID: "x-1", Units: driver.Whole, Capacity: driver.Whole})
	if _, err := ticket.Enqueue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err = ticket.Leave(t.Context())
	if took := time.Since(began); err == nil || took > 900*time.Millisecond {
		t.Errorf("leave took %s: %v; five retries take more than a second", took, err)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	// The one request is served now: asking again finds nothing left.
	if err := ticket.Leave(t.Context()); !errors.Is(err, driver.ErrGone) {
		t.Logf("the second leave: %v", err) // a server may drop what a closed connection had sent
	}
}

func TestRefusesOtherClients(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := goredis.Open(ring, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a ring: %v", err)
	}
}
