package redislock_test

import (
	"context"
	"flag"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	_ "github.com/hasplock/hasp/redislock"
)

// Nearly all of these tests' time is waiting, for TTLs and for servers: more than one for
// each processor may wait at a time. A -parallel on the command line comes later, and wins.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err) // package testing has renamed it
	}
	drivertest.Main(m)
}

// open opens a store by its URL, as hasp.Open does.
func open(t testing.TB, storeURL string) driver.Backend {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b, err := driver.Lookup(u.Scheme)(ctx, u)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// shortTTL is that of leases which the conformance tests let expire. A second is too short for
// a machine on which a hundred others are ready to run: holds were lost that nothing had harmed.
const shortTTL = 2 * time.Second

func TestConformanceSingle(t *testing.T) {
	server := backends.SharedRedis(t)
	drivertest.Run(t, withPrograms(server, "", drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, server.URL()) },
		URL:  server.URL(),
		TTL:  shortTTL,
	}))
}

func TestConformanceCluster(t *testing.T) {
	cluster := backends.SharedRedisCluster(t)
	for _, n := range cluster.Nodes { // no failover because a master had to wait for the processor
		do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000")
	}
	storeURL := "redis://" + strings.Join(cluster.Addrs(), ",")
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
		TTL:  shortTTL,
	})
}

func TestConformanceSentinel(t *testing.T) {
	set := noFailover(t, backends.StartRedisSentinel(t))
	var sentinels []string
	for _, s := range set.Sentinels {
		sentinels = append(sentinels, s.Addr)
	}
	storeURL := "redis://" + strings.Join(sentinels, ",") + "?sentinel=" + set.MasterName
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
		TTL:  shortTTL,
	})
}

func TestConformanceSetNX(t *testing.T) {
	server := backends.SharedRedis(t)
	storeURL := server.URL() + "?strategy=setnx"
	drivertest.Run(t, withPrograms(server, "strategy=setnx", drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
		TTL:  shortTTL,
	}))
}

func TestConformanceRedisson(t *testing.T) {
	server := backends.SharedRedis(t)
	storeURL := server.URL() + "?strategy=redisson"
	drivertest.Run(t, withPrograms(server, "strategy=redisson", drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
		TTL:  shortTTL,
	}))
}
