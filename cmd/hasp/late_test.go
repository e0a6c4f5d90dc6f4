//go:build unix

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// A store that starts after us: --wait covers that, and elect does not need it. What is wrong is
// told at once, while it waits.
func TestStoreThatStartsLate(t *testing.T) {
	redis, pg := backends.StartRedis(t, backends.RedisOptions{}), backends.StartPostgres(t, backends.PostgresOptions{})
	maria, etcd := backends.StartMariaDB(t, backends.MariaDBOptions{}), backends.StartEtcd(t, backends.EtcdOptions{})
	zk := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	for _, store := range []struct {
		name, url string
		process   *backends.Process
	}{
		{"redis", with(t, redis.URL(), "ttl=3s"), redis.Process}, // a new server grants nothing for a TTL
		{"postgres", pg.URL(), pg.Process},
		{"mysql", maria.URL(), maria.Process},
		{"etcd", strings.Replace(etcd.URL(), "http://", "etcd://", 1), etcd.Process},
		{"zookeeper", "zookeeper://" + zk.Addr, zk.Process},
	} {
		t.Run(store.name, func(t *testing.T) {
			if err := store.process.Stop(); err != nil {
				t.Fatal(err)
			}
			exits(t, 69, store.url) // the control: without --wait
			run := late(t, store.url, "run", "--wait", "10m", "a", "--", "true")
			wait := late(t, store.url, "wait", "--wait", "10m", "b")
			// The candidate ends when its command is asked to.
			elect := late(t, store.url, "elect", "c", "--", "sh", "-c", "kill -TERM $PPID; exec sleep 1000")
			if err := store.process.Restart(); err != nil {
				t.Fatal(err)
			}
			for verb, c := range map[string]*exec.Cmd{"run": run, "wait": wait, "elect": elect} {
				_ = c.Wait() // the code says it
				if code := c.ProcessState.ExitCode(); code != 0 {
					t.Errorf("%s: exit code %d", verb, code)
				}
			}
		})
	}
}

// late starts hasp and returns when it has said that it cannot reach the store, and tries again.
func late(t *testing.T, store string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), "hasp", args...)
	c.Env = append(os.Environ(), "HASP_STORE="+store, "GORACE=atexit_sleep_ms=0")
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "hasp: ") || !strings.HasSuffix(line, "; trying again\n") {
		t.Fatalf("hasp %s says %q, %v", args[0], line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return c
}

// What no patience heals ends at once, however long the wait may be.
func TestNoPatienceWithMistakes(t *testing.T) {
	pg, maria := backends.StartPostgres(t, backends.PostgresOptions{Password: "hunter2"}), backends.SharedMariaDB(t)
	redis := backends.StartRedis(t, backends.RedisOptions{Password: "hunter2"})
	for _, store := range []string{
		strings.Replace(pg.URL(), "hunter2", "wrong", 1),
		strings.Replace(pg.URL(), "/postgres?", "/nosuch?", 1),
		strings.Replace(pg.URL(), "sslmode=disable", "sslmode=verify-full", 1),
		strings.Replace(maria.URL(), ":"+maria.Password+"@", ":wrong@", 1),
		"redis://" + redis.Addr,
		"redis://:wrong@" + redis.Addr,
		redis.URL() + "?nosuch=1",
	} {
		for _, args := range [][]string{{"run", "--wait", "10m", "a", "--", "true"}, {"elect", "a", "--", "true"}} {
			code, _, errOut := hasp(t, store, args...)
			if code != 78 || strings.Contains(errOut, "trying again") || strings.Contains(errOut, "hunter2") {
				t.Errorf("%s, %s: %d, %s", store, args[0], code, errOut)
			}
		}
	}
}
