package redislock_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// user returns the URL of a server for a user who lacks some rights.
func user(t *testing.T, rights ...string) string {
	s := backends.StartRedis(t, backends.RedisOptions{})
	do(t, s, append([]string{"ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"}, rights...)...)
	return strings.Replace(s.URL(), "://", "://app:secret@", 1)
}

// told is a server that says a line to each client, and closes.
func told(t *testing.T, line string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(line + "\r\n"))
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte("x")) // rueidis takes what follows for a broken connection
			c.Close()
		}
	}()
	return "redis://" + l.Addr().String()
}

// A server that does not do what hasp needs says so in the first answer, with its cause and a cure,
// and no time is spent on asking again.
func TestRefusalsByName(t *testing.T) {
	plain := func(t *testing.T) string { return backends.SharedRedis(t).URL() }
	for name, c := range map[string]struct {
		url   func(t *testing.T) string
		want  string
		later bool // asking again later may help
	}{
		"no right inside a script": {func(t *testing.T) string {
			return user(t, "-hset", "-hmset", "-zadd", "-set")
		}, "this user may not", false},
		"redisson without channels": {func(t *testing.T) string { return with(user(t, "resetchannels"), "strategy=redisson") }, "this user may not", false},
		"a database of a cluster": {func(t *testing.T) string {
			return "redis://" + backends.SharedRedisCluster(t).Nodes[0].Addr + "/3"
		}, "one database", false},
		"an unknown master": {func(t *testing.T) string {
			return "redis://" + backends.StartRedisSentinel(t).Sentinels[0].Addr + "?sentinel=unknown"
		}, "?sentinel=NAME", false},
		"protected mode": {func(t *testing.T) string {
			return told(t, "-DENIED Redis is running in protected mode because protected mode is enabled")
		}, "protected mode is enabled", false},
		"no RESP3": {func(t *testing.T) string { return told(t, "-NOPROTO unsupported protocol version") }, "unsupported protocol version", false},
		"EVALSHA disabled": {func(t *testing.T) string {
			return backends.StartRedis(t, backends.RedisOptions{Config: []string{`rename-command EVALSHA ""`}}).URL()
		}, "disabled there (rename-command)", false},
		"TLS at a plain port": {func(t *testing.T) string { return strings.Replace(plain(t), "redis://", "rediss://", 1) }, "speak TLS on this port", true},
		"plain at a TLS port": {func(t *testing.T) string {
			return "redis://" + backends.StartRedis(t, backends.RedisOptions{TLS: true}).Addr
		}, "does it speak TLS", true},
		"standalone servers in a list": {func(t *testing.T) string {
			return strings.Replace(plain(t), "redis://", "redis://"+backends.StartRedis(t, backends.RedisOptions{}).Addr+",", 1)
		}, "redlock://", false},
		"a Sentinel's port": {func(t *testing.T) string {
			set := backends.StartRedisSentinel(t)
			return "redis://" + set.Sentinels[0].Addr
		}, "?sentinel=NAME", false},
		"all connections in use": {func(t *testing.T) string {
			s := backends.StartRedis(t, backends.RedisOptions{Config: []string{"maxclients 1"}})
			var c *hasp.Client // it has the one that there is
			testkit.Eventually(t, "the connection that has asked whether the server is there is closed", func() bool {
				var err error
				c, err = hasp.Open(t.Context(), s.URL())
				return err == nil
			})
			t.Cleanup(func() { c.Close() })
			return s.URL()
		}, "maxclients", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := c.url(t)
			const ttl = 20 * time.Second
			began := time.Now()
			err := func() error {
				client, err := hasp.Open(t.Context(), with(url, fmt.Sprint("ttl=", ttl)))
				if err != nil {
					return err
				}
				defer client.Close()
				_, err = client.Mutex("a").Lock(t.Context())
				return err
			}()
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v", err)
			}
			if !c.later && !errors.Is(err, hasp.ErrInvalid) {
				t.Errorf("it is no refusal for good: %v", err)
			}
			if errors.Is(err, hasp.ErrUnknown) {
				t.Errorf("nothing was done, and the outcome is called unknown: %v", err)
			}
			if took := time.Since(began); took > ttl/2 {
				t.Errorf("it took %s to say so", took)
			}
		})
	}
}

// A user who lacks a right that a release needs is told so, and at once: the words of the server were
// lost, and the outcome was called unknown after three TTLs.
func TestReleaseRefused(t *testing.T) {
	t.Parallel()
	for strategy, right := range map[string]string{"queue": "-hdel", "setnx": "-del", "redisson": "-del"} {
		l := testkit.Lock(t, client(t, with(user(t, right), "strategy="+strategy)), "a")
		began := time.Now()
		err := l.Release(t.Context())
		if err == nil || !strings.Contains(err.Error(), "this user may not") || time.Since(began) > calm {
			t.Errorf("%s: %v after %s", strategy, err, time.Since(began))
		}
	}
}
