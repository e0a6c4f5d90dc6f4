package redislock_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	_ "github.com/hasplock/hasp/redislock"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

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

func TestConformanceSingle(t *testing.T) {
	server := backends.SharedRedis(t)
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, server.URL()) },
		URL:  server.URL(),
	})
}

func TestConformanceCluster(t *testing.T) {
	cluster := backends.SharedRedisCluster(t)
	storeURL := "redis://" + strings.Join(cluster.Addrs(), ",")
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
	})
}

func TestConformanceSentinel(t *testing.T) {
	set := backends.StartRedisSentinel(t)
	var sentinels []string
	for _, s := range set.Sentinels {
		sentinels = append(sentinels, s.Addr)
	}
	storeURL := "redis://" + strings.Join(sentinels, ",") + "?sentinel=" + set.MasterName
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
	})
}

func TestConformanceSetNX(t *testing.T) {
	storeURL := backends.SharedRedis(t).URL() + "?strategy=setnx"
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
	})
}

func TestConformanceRedisson(t *testing.T) {
	storeURL := backends.SharedRedis(t).URL() + "?strategy=redisson"
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
	})
}
