package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// bed stands in for the test in calls of internal/backends. All pairs share its servers, and the
// janitor ends them with this process: there is nothing to clean up before.
type bed struct{ backends.Program }

// Cleanup does nothing.
func (*bed) Cleanup(func()) {}

// address has a server started, if it does not run yet, and returns what f makes of it.
func address(f func(testing.TB) string) (a string, err error) {
	b := &bed{}
	err = b.Run(func() { a = f(b) })
	return a, err
}

// The addresses of the servers, as clients of others take them.
func redisAddr(tb testing.TB) string      { return backends.SharedRedis(tb).Addr }
func etcdAddr(tb testing.TB) string       { return backends.SharedEtcd(tb).Addr }
func postgresServer(tb testing.TB) string { return backends.SharedPostgres(tb).URL() }
func mariadbServer(tb testing.TB) string  { return backends.SharedMariaDB(tb).URL() }

// zookeeperAddr is of a server that grants calm sessions: others cut them to 20 ticks.
func zookeeperAddr(testing.TB) string { return calmZooKeeper().Addr }

var calmZooKeeper = sync.OnceValue(func() *backends.ZooKeeper {
	return backends.StartZooKeeper(&bed{}, backends.ZooKeeperOptions{
		Config: []string{fmt.Sprintf("maxSessionTimeout=%d", calm.Milliseconds())},
	})
})

func fiveRedisAddrs(tb testing.TB) string {
	var addrs []string
	for _, r := range backends.SharedRedisNodes(tb) {
		addrs = append(addrs, r.Addr)
	}
	return strings.Join(addrs, ",")
}

// tempDir is a new directory for a store of files, which its user removes.
func tempDir(tb testing.TB) string {
	dir, err := os.MkdirTemp("", "hasp-interop-store-")
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}
