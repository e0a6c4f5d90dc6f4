package redislock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
)

// A server that does not do what hasp needs says so in the first answer, with its cause and a cure,
// and no time is spent on asking again.
func TestRefusalsByName(t *testing.T) {
	plain := func(t *testing.T) string { return backends.SharedRedis(t).URL() }
	for name, c := range map[string]struct {
		url  func(t *testing.T) string
		want string
	}{
		"no right inside a script": {func(t *testing.T) string {
			s := backends.StartRedis(t, backends.RedisOptions{})
			do(t, s, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-hset", "-hmset", "-zadd", "-set")
			return strings.Replace(s.URL(), "://", "://app:secret@", 1)
		}, "this user may not"},
		"EVALSHA disabled": {func(t *testing.T) string {
			return backends.StartRedis(t, backends.RedisOptions{Config: []string{`rename-command EVALSHA ""`}}).URL()
		}, "disabled there (rename-command)"},
		"TLS at a plain port": {func(t *testing.T) string { return strings.Replace(plain(t), "redis://", "rediss://", 1) }, "speak TLS on this port"},
		"plain at a TLS port": {func(t *testing.T) string {
			return "redis://" + backends.StartRedis(t, backends.RedisOptions{TLS: true}).Addr
		}, "does it speak TLS"},
		"standalone servers in a list": {func(t *testing.T) string {
			return strings.Replace(plain(t), "redis://", "redis://"+backends.StartRedis(t, backends.RedisOptions{}).Addr+",", 1)
		}, "redlock://"},
		"a Sentinel's port": {func(t *testing.T) string {
			set := backends.StartRedisSentinel(t)
			return "redis://" + set.Sentinels[0].Addr
		}, "?sentinel=NAME"},
		"all connections in use": {func(t *testing.T) string {
			s := backends.StartRedis(t, backends.RedisOptions{Config: []string{"maxclients 1"}})
			c, err := hasp.Open(t.Context(), s.URL()) // it has the one that there is
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return s.URL()
		}, "maxclients"},
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
			if errors.Is(err, hasp.ErrUnknown) {
				t.Errorf("nothing was done, and the outcome is called unknown: %v", err)
			}
			if took := time.Since(began); took > ttl/2 {
				t.Errorf("it took %s to say so", took)
			}
		})
	}
}
