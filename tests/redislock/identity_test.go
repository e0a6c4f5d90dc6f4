package redislock_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/goredis"
)

func identity(t *testing.T, storeURL string) string {
	t.Helper()
	b := testkit.Open(t, storeURL)
	defer b.Close()
	return testkit.Identity(t, b)
}

func overGoRedis(t *testing.T, c redis.UniversalClient, o *redislock.Options) string {
	t.Helper()
	defer c.Close()
	b, err := goredis.New(c, o)
	must(t, err)
	return testkit.Identity(t, b)
}

// Two stores are one if the same names contend in them, through any URL and client library they
// are opened. (The label was the identity: prefixes, strategies and all Sentinel sets of go-redis
// were one store, and two names of one server were two.)
func TestIdentity(t *testing.T) {
	t.Parallel()
	server, other := backends.StartRedis(t, backends.RedisOptions{}), backends.StartRedis(t, backends.RedisOptions{})
	localhost := strings.Replace(server.Addr, "127.0.0.1", "localhost", 1)
	seen := map[string]string{}
	for what, same := range map[string][]string{
		"queue":                   {"", "/0", "?strategy=queue", "?prefix=hasp:", "?retention=2h"},
		"another prefix":          {"?prefix=shop:", "/0?prefix=shop:"},
		"another database":        {"/1", "/1?prefix=hasp:"},
		"setnx":                   {"?strategy=setnx", "?strategy=setnx&fence=off", "?strategy=setnx&fence_prefix=shop:"},
		"setnx, a prefix":         {"?strategy=setnx&prefix=shop:"},
		"setnx, another database": {"/2?strategy=setnx"},
		"redisson":                {"?strategy=redisson", "?strategy=redisson&fence=off"},
	} {
		text := identity(t, server.URL()+same[0])
		for _, s := range same {
			for _, host := range []string{server.Addr, localhost} {
				if got := identity(t, "redis://"+host+s); got != text {
					t.Errorf("%s: %s%s is %q, and %s is %q", what, host, s, got, same[0], text)
				}
			}
		}
		for _, storeURL := range []string{server.URL(), other.URL()} {
			text := identity(t, storeURL+same[0])
			if was, ok := seen[text]; ok {
				t.Errorf("%s of %s and %s are both %q", what, storeURL, was, text)
			}
			seen[text] = what + " of " + storeURL
		}
	}
	if got, want := overGoRedis(t, redis.NewClient(&redis.Options{Addr: localhost}), nil), identity(t, server.URL()); got != want {
		t.Errorf("over go-redis it is %q, by URL %q", got, want)
	}
	setNX := &redislock.Options{Strategy: redislock.StrategySetNX}
	if got, want := overGoRedis(t, redis.NewClient(&redis.Options{Addr: server.Addr, DB: 2}), setNX), identity(t, server.URL()+"/2?strategy=setnx"); got != want {
		t.Errorf("over go-redis it is %q, by URL %q", got, want)
	}
}

// A cluster and a Sentinel set are each one store, by each of their servers.
func TestIdentityOfSeveralServers(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	cluster := backends.SharedRedisCluster(t)
	want := identity(t, "redis://"+strings.Join(cluster.Addrs(), ","))
	for _, o := range []*redis.ClusterOptions{{Addrs: cluster.Addrs()[:1]}, {Addrs: cluster.Addrs()[4:]}} {
		if got := overGoRedis(t, redis.NewClusterClient(o), nil); got != want {
			t.Errorf("by %s the cluster is %q, by all nodes %q", o.Addrs, got, want)
		}
	}
	if got := identity(t, "redis://"+cluster.Addrs()[2]); got != want {
		t.Errorf("by one node the cluster is %q, by all %q", got, want)
	}

	set := noFailover(t, backends.StartRedisSentinel(t))
	byMaster := identity(t, set.Master.URL())
	var sentinels []string
	for _, s := range set.Sentinels {
		sentinels = append(sentinels, s.Addr)
	}
	if got := identity(t, "redis://"+sentinels[1]+"?sentinel="+set.MasterName); got != byMaster {
		t.Errorf("by a sentinel the set is %q, by its master %q", got, byMaster)
	}
	failover := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: set.MasterName, SentinelAddrs: sentinels})
	if got := overGoRedis(t, failover, nil); got != byMaster {
		t.Errorf("over go-redis the set is %q, by its master %q", got, byMaster)
	}
	if byMaster == want {
		t.Errorf("two stores are %q", want)
	}
}

// The permissions that a user needs to lock are enough for the identity, too.
func TestIdentityWithFewPermissions(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for storeURL, rules := range map[string][]string{
		"":                              {"~hasp:*", "&hasp:*"},
		"?prefix=shop:locks:":           {"~shop:locks:*", "&shop:locks:*"},
		"?strategy=setnx&prefix=orders": {"~orders*", "~hasp:lock:*", "&hasp:lock:*"},
	} {
		do(t, server, append([]string{"ACL", "SETUSER", "ana", "reset", "on", ">secret", "+@all"}, rules...)...)
		c := client(t, "redis://ana:secret@"+server.Addr+storeURL)
		must(t, testkit.Lock(t, c, "a").Release(t.Context()))
		if got, want := testkit.Identity(t, c.Backend()), identity(t, server.URL()+storeURL); got != want {
			t.Errorf("%s: %q for one user, %q for another", storeURL, got, want)
		}
	}
}

// A server that forgets everything gets its identity back from the clients that know it. If
// another client has asked before, there are two texts for a while; a later client gets one of
// them, whichever is restored first.
func TestIdentityForgotten(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			storeURL := server.URL() + "?strategy=" + strategy
			ask := func() string { return identity(t, storeURL) }
			knows := func() (driver.Session, string) {
				b := testkit.Open(t, storeURL)
				return session(t, b, calm), testkit.Identity(t, b)
			}
			s, want := knows()
			do(t, server, "FLUSHALL")
			testkit.Eventually(t, "the identity restored", func() bool { // in the background of a renewal, which does not wait for it
				_, err := s.KeepAlive(t.Context())
				must(t, err)
				return do(t, server, "DBSIZE") == "1"
			})
			if got := ask(); got != want {
				t.Errorf("it was %q, and is %q", want, got)
			}
			var s2 driver.Session
			second := want
			for round := 0; second == want; round++ { // the last renewal's request may arrive after the server forgot
				if round == 5 {
					t.Fatal("nothing was forgotten")
				}
				do(t, server, "FLUSHALL")
				s2, second = knows()
			}
			smaller := min(want, second)
			testkit.Eventually(t, "the smaller identity everywhere", func() bool {
				for _, s := range []driver.Session{s2, s} {
					_, err := s.KeepAlive(t.Context())
					must(t, err)
				}
				return ask() == smaller
			})
			for range 5 {
				for _, s := range []driver.Session{s, s2} {
					_, err := s.KeepAlive(t.Context())
					must(t, err)
				}
				time.Sleep(10 * time.Millisecond)
				if got := ask(); got != smaller {
					t.Errorf("of %q and %q it is %q", want, second, got)
				}
			}
		})
	}
}

// A store is closed while it is out of reach: nothing goes on in the background, on a client that
// is its user's and stays open. (For a TTL a goroutine waited to restore the identity.)
func TestIdentityEndsWithClose(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, ConnWriteTimeout: time.Hour})
	must(t, err)
	defer client.Close()
	restoring := func() bool {
		stacks := make([]byte, 4<<20)
		return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "identity).restore.func")
	}
	for _, strategy := range []redislock.Strategy{redislock.StrategyQueue, redislock.StrategySetNX} {
		b, err := redislock.New(client, &redislock.Options{Strategy: redislock.Strategy(strategy)})
		must(t, err)
		testkit.Identity(t, b)
		s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Hour, Gone: func(string, error) {}})
		must(t, err)
		must(t, server.Pause())
		_, _ = s.KeepAlive(t.Context()) // nothing is held
		testkit.Eventually(t, "a goroutine that restores the identity", restoring)
		must(t, s.Close(t.Context()))
		must(t, b.Close())
		testkit.Eventually(t, "no such goroutine", func() bool { return !restoring() })
		must(t, server.Resume())
	}
}
