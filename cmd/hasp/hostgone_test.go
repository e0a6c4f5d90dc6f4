//go:build unix && !noserve && !nohttp && !noredis

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	lib "github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// onHost opens a store as a process on another machine would.
func onHost(t *testing.T, store, host, user string) *lib.Client {
	t.Helper()
	return testkit.Client(t, store, lib.WithOwner(lib.Owner{Host: host, User: user, PID: 1}))
}

// twoHosts has two hosts hold and wait, under names that no other test has: web-3 holds a and c, and
// waits for a and b; web-4 holds b, and waits for a behind web-3.
func twoHosts(t *testing.T, store string) (prefix string, held map[string]*lib.Lease, gone, stays <-chan *lib.Lease) {
	t.Helper()
	prefix = filepath.Base(filepath.Dir(t.TempDir())) + "/"
	three, other, four := onHost(t, store, "web-3", "deploy"), onHost(t, store, "web-3", "ana"), onHost(t, store, "web-4", "deploy")
	held = map[string]*lib.Lease{
		"a": testkit.Lock(t, three, prefix+"a"), "b": testkit.Lock(t, four, prefix+"b"), "c": testkit.Lock(t, other, prefix+"c"),
	}
	testkit.Queued(t, three, prefix+"b")
	gone = testkit.Queued(t, other, prefix+"a")
	return prefix, held, gone, testkit.Queued(t, four, prefix+"a")
}

// fifoStores have queues, and can take a lock away.
func fifoStores(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"file": "file://" + t.TempDir(), "redis": backends.SharedRedis(t).URL(), "postgres": backends.SharedPostgres(t).URL(),
		"mysql": backends.SharedMariaDB(t).URL(), "etcd": "etcd://" + backends.SharedEtcd(t).Addr,
		"zookeeper": "zookeeper://" + backends.SharedZooKeeper(t).Addr + "?connect_timeout=20s",
	}
}

// A machine is gone: ls shows what it holds, and release --force --host takes that away, with its
// places in queues. What others have stays.
func TestHostIsGone(t *testing.T) {
	for kind, store := range fifoStores(t) {
		t.Run(kind, func(t *testing.T) {
			prefix, held, gone, stays := twoHosts(t, store)
			for args, want := range map[string]string{
				"":                              "a b c",
				"--host web-3":                  "a c",
				"--host WEB-3":                  "",
				"--user deploy":                 "a b",
				"--host web-3 --user deploy":    "a",
				"--host web-3 --older-than 1h":  "",
				"--host web-4 --older-than 1ms": "b",
			} {
				if have := strings.Join(listed(t, store, append(strings.Fields(args), prefix)...), " "); have != want {
					t.Errorf("hasp ls %s: %q, want %q", args, have, want)
				}
			}
			if code, out, errOut := hasp(t, store, "ls", "--host", "web-3", prefix); code != 0 || strings.Count(out, "\n") != 3 ||
				!strings.Contains(out, "deploy@web-3") || strings.Contains(out, "web-4") || !strings.Contains(errOut, "2 in use") {
				t.Errorf("%d, %s%s", code, out, errOut)
			}

			code, out, errOut := hasp(t, store, "release", "--force", "--host", "web-3", "--reason", "web-3 is gone", "--json", prefix)
			if code != 0 || strings.Count(out, `"event":"evicted"`) != 4 || strings.Contains(out, "web-4") || strings.Count(out, "\n") != 4 ||
				!strings.Contains(errOut, `entries of the host "web-3" removed at `) || !strings.HasSuffix(errOut, ": 4\n") {
				t.Fatalf("%d, %s%s", code, out, errOut)
			}
			testkit.Lost(t, held["a"], lib.ReasonDenied)
			testkit.Lost(t, held["c"], lib.ReasonDenied)
			next := testkit.Granted(t, stays)
			if !held["b"].Held() || next.Token() <= held["a"].Token() {
				t.Errorf("the other host's: %t; token %d after %d", held["b"].Held(), next.Token(), held["a"].Token())
			}
			select {
			case <-gone:
				t.Error("a waiter of the host was granted the lock that its holder lost")
			default:
			}
			if names := listed(t, store, "--host", "web-3", prefix); len(names) != 0 {
				t.Errorf("left: %q", names)
			}
			code, _, errOut = hasp(t, store, "release", "--force", "--host", "web-33", "--reason", "gone", prefix)
			if code != 0 || !strings.HasSuffix(errOut, ": 0\n") {
				t.Errorf("a host that is not there: %d, %s", code, errOut)
			}
		})
	}
}

// listed returns the names that ls --json shows without their prefix, which is the last argument.
func listed(t *testing.T, store string, args ...string) (names []string) {
	t.Helper()
	code, out, errOut := hasp(t, store, append([]string{"ls", "--json"}, args...)...)
	if code != 0 {
		t.Fatalf("%d, %s", code, errOut)
	}
	for line := range strings.Lines(out) {
		var q lib.Queue
		if err := json.Unmarshal([]byte(line), &q); err != nil || len(q.Holders) == 0 {
			t.Fatalf("%s: %v", line, err)
		}
		names = append(names, strings.TrimPrefix(q.Name, args[len(args)-1]))
	}
	return names
}

// Holders of other libraries have no owner and no time, and no filter shows them.
func TestFiltersLeaveForeignHoldersOut(t *testing.T) {
	redis := backends.SharedRedis(t)
	store := with(t, redis.URL(), "strategy=setnx")
	if code, _, errOut := hasp(t, store, "try", "4713", "--", "true"); code != 0 { // names that hasp has locked once are listed
		t.Fatal(errOut)
	}
	redisDo(t, redis, "SET", "4713", "somebody", "PX", "600000")
	if names := listed(t, store, "4713"); len(names) != 1 {
		t.Fatalf("%q", names)
	}
	for _, filter := range [][]string{{"--host", "somebody"}, {"--user", "somebody"}, {"--older-than", "0"}} {
		if names := listed(t, store, append(filter, "4713")...); len(names) != 0 {
			t.Errorf("%v: %q", filter, names)
		}
	}
}

// allow gives the only token of a file other rights with a prefix.
func allow(t *testing.T, tokens, rights, prefix string) {
	t.Helper()
	line, err := os.ReadFile(tokens)
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(line))
	line = fmt.Appendf(line, "%s %s %s %s\n", f[0], rights, prefix, f[len(f)-1])
	if err := os.WriteFile(tokens, line, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A name that may not be changed keeps no other: it is told, and gives the exit code.
func TestHostIsGoneExceptSome(t *testing.T) {
	store := backends.SharedRedis(t).URL()
	prefix, held, _, _ := twoHosts(t, store)
	tokens := filepath.Join(t.TempDir(), "tokens")
	token, err := exec.Command("hasp", "serve", "token", "--tokens", tokens, "--rights", "look", "ops").Output()
	if err != nil {
		t.Fatal(err)
	}
	allow(t, tokens, "operate", prefix+"c")
	_, host, _ := strings.Cut(startServer(t, store, "--tokens", tokens), "://")
	code, out, errOut := hasp(t, "hasp+http://"+strings.TrimSpace(string(token))+"@"+host, "release", "--force", "--host", "web-3", "--reason", "gone", "--json", prefix)
	if code != 78 || strings.Count(out, `"event":"evicted"`) != 1 || !strings.Contains(errOut, "2 of 3 names failed: ") ||
		!strings.Contains(errOut, prefix+"a") || !strings.Contains(errOut, prefix+"b") || !strings.Contains(errOut, "right to operate") {
		t.Errorf("%d, %s%s", code, out, errOut)
	}
	testkit.Lost(t, held["c"], lib.ReasonDenied)
	if !held["a"].Held() || !held["b"].Held() {
		t.Error("a lock was taken away without the right to it")
	}
}

// A store that does not answer is not asked for each name.
func TestHostIsGoneAndTheStoreToo(t *testing.T) {
	code, _, errOut := hasp(t, "redis://127.0.0.1:1", "release", "--force", "--host", "web-3", "--reason", "gone")
	if code != 69 {
		t.Errorf("%d, %s", code, errOut)
	}
}

// The waiting line says the place in the queue on each store that has one, and through hasp serve.
func TestPlaceInTheQueue(t *testing.T) {
	stores := fifoStores(t)
	tokens := filepath.Join(t.TempDir(), "tokens")
	token, err := exec.Command("hasp", "serve", "token", "--tokens", tokens, "runner").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, host, _ := strings.Cut(startServer(t, stores["redis"], "--tokens", tokens), "://")
	stores["serve"] = "hasp+http://" + strings.TrimSpace(string(token)) + "@" + host
	stores["none"] = with(t, stores["redis"], "strategy=setnx") // the control: nothing stands in a queue
	name := "place-" + filepath.Base(filepath.Dir(t.TempDir()))
	for kind, store := range stores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := name + kind
			testkit.Lock(t, onHost(t, store, "web-3", "ana"), name)
			if kind != "none" {
				testkit.Queued(t, onHost(t, store, "web-4", "ana"), name)
				testkit.Queued(t, onHost(t, store, "web-5", "ana"), name)
			}
			code, _, errOut := hasp(t, store, "run", "--wait", "6s", name, "--", "true")
			place := strings.Contains(errOut, fmt.Sprintf(`waiting, position 3 of 3: %q held by ana@web-3 `, name))
			if code != 75 || place == (kind == "none") {
				t.Errorf("%d, %s", code, errOut)
			}
		})
	}
}
