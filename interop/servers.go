package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// bed is what internal/backends takes for a test: its failures become errors of start. The
// servers end with this process, by their janitor.
type bed struct{ testing.TB }

// bedError is what a bed panics with.
type bedError string

func (bed) Helper()                         {}
func (bed) Fatal(args ...any)               { panic(bedError(fmt.Sprint(args...))) }
func (bed) Fatalf(f string, a ...any)       { panic(bedError(fmt.Sprintf(f, a...))) }
func (bed) Skip(args ...any)                { panic(bedError(fmt.Sprint(args...))) }
func (bed) Failed() bool                    { return false }
func (bed) Cleanup(func())                  {}
func (bed) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// address has a server started, if it does not run yet, and returns what f makes of it.
func address(f func(testing.TB) string) (a string, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case bedError:
			err = fmt.Errorf("server: %s", string(p))
		default:
			panic(p)
		}
	}()
	return f(bed{}), nil
}

// The addresses of the servers, as clients of others take them.
func redisAddr(tb testing.TB) string   { return backends.SharedRedis(tb).Addr }
func etcdAddr(tb testing.TB) string    { return backends.SharedEtcd(tb).Addr }
func postgresURL(tb testing.TB) string { return backends.SharedPostgres(tb).URL() }
func mariadbURL(tb testing.TB) string  { return backends.SharedMariaDB(tb).URL() }

// zookeeperAddr is of a server that grants calm sessions: others cut them to 20 ticks.
func zookeeperAddr(testing.TB) string { return calmZooKeeper().Addr }

var calmZooKeeper = sync.OnceValue(func() *backends.ZooKeeper {
	return backends.StartZooKeeper(bed{}, backends.ZooKeeperOptions{
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
