// Package examples_test runs the examples of drivers and fences on real servers.
package examples_test

import (
	"os/exec"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql" // sqlkit opens it

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

const module = "github.com/hasplock/hasp/"

// prints runs the examples of a package, which are in its module since that is where people read
// them. A module's tests start no servers: TestExamples there takes the one that EXAMPLE_STORE names,
// and go test would fail without one if the examples stated their output.
func prints(t *testing.T, pkg, store, want string) {
	t.Helper()
	cmd := exec.Command("go", "test", "-count=1", "-vet=off", "-v", "-run=^TestExamples$", module+pkg)
	cmd.Env = append(cmd.Environ(), "EXAMPLE_STORE="+store)
	out, err := cmd.CombinedOutput()
	_, printed, ran := strings.Cut(string(out), "=== RUN   TestExamples\n")
	printed, _, passed := strings.Cut(printed, "--- PASS: TestExamples")
	if err != nil || !ran || !passed {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	if printed != want {
		t.Errorf("%s printed:\n%s\nwant:\n%s", pkg, printed, want)
	}
}

// What each fence's example prints.
const fenced = "second: <nil>\nfirst is stale: true\n"

func TestEtcd(t *testing.T) {
	addr := backends.SharedEtcd(t).Addr
	prints(t, "etcdlock", addr, `working
released: <nil>
two of three permits: true
<nil>
written: true
released: <nil>
written: false
`)
	prints(t, "etcdlock/etcdfence", addr, fenced)
}

func TestRedis(t *testing.T) {
	addr := backends.SharedRedis(t).Addr
	prints(t, "redislock", addr, `held: true with a token: true
<nil>
keys with that name: 1
<nil>
`)
	prints(t, "redislock/redisfence", addr, fenced)
	prints(t, "redislock/goredis", addr, `[OK paid] <nil>
true
`)
}

func TestRedlock(t *testing.T) {
	var addrs []string
	for _, n := range backends.SharedRedisNodes(t) {
		addrs = append(addrs, n.Addr)
	}
	prints(t, "redislock/redlock", strings.Join(addrs, ","), `held: true with a token: false
<nil>
on a majority: true
<nil>
`)
}

func TestPostgres(t *testing.T) {
	url := backends.SharedPostgres(t).URL()
	prints(t, "pglock", url, `held: true with a token: true
<nil>
advisory locks of that number: 1
<nil>
`)
	prints(t, "pglock/pgxfence", url, fenced)
}

func TestMariaDB(t *testing.T) {
	prints(t, "mysqllock", sqlkit.MariaDBStore(t, backends.SharedMariaDB(t)), `this is the only one
released: <nil>
two of three permits: true
<nil>
free for others: false
<nil>
CREATE TABLE IF NOT EXISTS app_schema (
CREATE TABLE IF NOT EXISTS app_names (
CREATE TABLE IF NOT EXISTS app_sessions (
CREATE TABLE IF NOT EXISTS app_entries (
CREATE TABLE IF NOT EXISTS app_bound (
CREATE TABLE IF NOT EXISTS app_evictions (
CREATE TABLE IF NOT EXISTS app_store (
`)
}

func TestZooKeeper(t *testing.T) {
	prints(t, "zklock/zkfence", backends.SharedZooKeeper(t).Addr, fenced)
}
