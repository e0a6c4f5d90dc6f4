package redislock_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A real server, whose INFO says what other servers and services are known to say, is named by the
// doctor, or refused when the store is opened. The control says nothing new, and works.
func TestProducts(t *testing.T) {
	t.Parallel()
	build := regexp.MustCompile(`redis_git_sha1:[0-9a-f]{8}\r\nredis_git_dirty:.`)
	replID := regexp.MustCompile(`master_replid:[0-9a-f]{40}`)
	master := regexp.MustCompile(`role:master\r\nconnected_slaves:0`)
	for _, c := range []struct {
		says    *regexp.Regexp
		planted string
		want    string // "": no finding
		refused bool
	}{
		{build, "redis_git_sha1:00000000", "", false},
		{build, "dragonfly_version:df-v1.40.1", "Dragonfly", false},
		{build, "mvcc_depth:0", "KeyDB", false},
		{build, "garnet_version:2.2.8", "Garnet", false},
		{build, "upstash_version:1.10.5", "Upstash", false},
		{build, "os:Amazon ElastiCache", "Amazon ElastiCache", false},
		{build, "os:Amazon MemoryDB", "Amazon MemoryDB", false},
		{master, "role:active-replica\r\nplant:000", "KeyDB with active-replica", true},
		{replID, "master_replid:" + strings.Repeat("0", 40), "Garnet without a cluster", true},
	} {
		server := backends.SharedRedis(t)
		addr := testkit.Rewritten(t, server.Addr, func(said []byte) {
			if old := c.says.Find(said); old != nil {
				testkit.Overwrite(said, string(old), c.planted)
			}
		})
		for _, strategy := range []string{"queue", "setnx"} {
			storeURL := "redis://" + addr + "?strategy=" + strategy
			opened, err := hasp.Open(t.Context(), storeURL)
			if c.refused {
				if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), addr) {
					t.Errorf("%s: %v", c.planted, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", c.planted, err)
				continue
			}
			opened.Close()
			all := findings(t, storeURL)
			if c.want != "" {
				testkit.WantFinding(t, all, "product", driver.Warn, c.want)
			} else if f, found := all["product"]; found {
				t.Errorf("%s: %+v", c.planted, f)
			}
		}
	}
}

// A user without the right to INFO opens a store all the same, but not that of a replica.
func TestOpenWithoutInfo(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	do(t, server, "ACL", "SETUSER", "noinfo", "on", ">secret", "~*", "&*", "+@all", "-info")
	storeURL := "redis://noinfo:secret@" + server.Addr
	open := func() error {
		c, err := hasp.Open(t.Context(), storeURL)
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := open(); err != nil {
		t.Error(err)
	}
	do(t, server, "REPLICAOF", "127.0.0.1", "1")
	if err := open(); !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "replica") {
		t.Errorf("a replica: %v", err)
	}
}
