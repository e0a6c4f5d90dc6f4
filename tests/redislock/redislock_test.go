package redislock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	_ "github.com/hasplock/hasp/redislock"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

// shortTTL is the TTL of leases that the conformance tests let expire. A second is too short for
// a machine with a hundred runnable processes: locks were lost without a fault.
const shortTTL = 2 * time.Second

func TestConformance(t *testing.T) {
	server := backends.SharedRedis(t)
	conform(t, server.URL(), server, "")
}

// The suites run in parallel with each other, but with no other test: parallel tests start after
// this one has ended, as drivertest.Run demands. All servers run before the first suite begins:
// their connections would look like leaks.
func TestConformanceOthers(t *testing.T) {
	testtier.Long(t)
	for name, storeURL := range map[string]func(*testing.T) string{"Cluster": clusterURL, "Sentinel": sentinelURL} {
		t.Run(name, func(t *testing.T) {
			own := storeURL(t)
			t.Parallel()
			conform(t, own, nil, "")
		})
	}
	for name, params := range map[string]string{ // with prefixes, since the suites use some equal names
		"Queue": "wait=1&prefix=q:", "SetNX": "wait=1&prefix=s:&strategy=setnx", "Redisson": "wait=1&prefix=r:&strategy=redisson",
	} {
		for kind, storeURL := range map[string]func(*testing.T) string{"Single": replicatedURL, "Cluster": clusterURL, "Sentinel": sentinelURL} {
			if name != "Queue" && kind != "Single" {
				continue // a cluster refuses some of the suite's names: see TestReplicatedSlots
			}
			t.Run("Wait"+name+kind, func(t *testing.T) {
				own := storeURL(t)
				t.Parallel()
				conform(t, with(own, params), nil, "")
			})
		}
	}
	for name, params := range map[string]string{"SetNX": "strategy=setnx", "Redisson": "strategy=redisson"} {
		t.Run(name, func(t *testing.T) {
			server := backends.StartRedis(t, backends.RedisOptions{})
			t.Parallel()
			conform(t, server.URL()+"?"+params, server, params)
		})
	}
}

// conform runs the suite. Random programs reach a single server through separate networks.
func conform(t *testing.T, storeURL string, server *backends.Redis, params string) {
	h := drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return testkit.Open(t, storeURL) },
		URL:  storeURL,
		TTL:  shortTTL,
	}
	if server != nil {
		h.Counted = testkit.Counted(storeURL)
		h = withPrograms(server, params, h)
	}
	drivertest.Run(t, h)
}

func clusterURL(t *testing.T) string {
	cluster := backends.SharedRedisCluster(t)
	for _, n := range cluster.Nodes { // no failover because a master had to wait for the processor
		do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000")
	}
	return "redis://" + strings.Join(cluster.Addrs(), ",")
}

func sentinelURL(t *testing.T) string {
	set := noFailover(t, backends.StartRedisSentinel(t))
	var sentinels []string
	for _, s := range set.Sentinels {
		sentinels = append(sentinels, s.Addr)
	}
	return "redis://" + strings.Join(sentinels, ",") + "?sentinel=" + set.MasterName
}

// replicatedURL is a server with a replica.
func replicatedURL(t *testing.T) string {
	master, replica := newReplica(t), newReplica(t)
	follow(t, replica, master)
	return master.URL()
}

// The first four of those who wait are told their places.
func TestPlaces(t *testing.T) {
	t.Parallel()
	testkit.Places(t, testkit.Open(t, backends.SharedRedis(t).URL()), 1, 2, 3, 4, 0)
}
