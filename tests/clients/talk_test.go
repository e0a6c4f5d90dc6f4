package clients_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	_ "github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// talker is a program of a client, which does what it is told: see talk.py.
type talker struct {
	t      *testing.T
	name   string
	in     io.Writer
	said   chan string
	exited chan error
	stderr *strings.Builder
	pid    int
}

func talk(t *testing.T, name string, args ...string) *talker {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	k := &talker{t: t, name: name, said: make(chan string, 10), exited: make(chan error, 1), stderr: new(strings.Builder)}
	c.Stderr = k.stderr
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err1 != nil || err2 != nil || c.Start() != nil {
		t.Fatal(err1, err2)
	}
	k.in, k.pid = in, c.Process.Pid
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			k.said <- lines.Text()
		}
		k.exited <- c.Wait()
	}()
	t.Cleanup(func() { _ = in.Close() })
	return k
}

// ends has the program end, which must not be a crash: a thread of the client, or a promise that
// nothing has waited for.
func (k *talker) ends() {
	k.t.Helper()
	_ = k.in.(io.Closer).Close()
	if err := testkit.Await(k.t, k.name+" to end", k.exited); err != nil {
		k.t.Errorf("%s: %v\n%s", k.name, err, k.stderr)
	}
}

// tell says a command, and returns what the program says of it.
func (k *talker) tell(what, name string) string {
	k.t.Helper()
	k.send(what, name)
	return k.hears(name)
}

func (k *talker) send(what, name string) { fmt.Fprintln(k.in, what, name) }

func (k *talker) hears(name string) string {
	k.t.Helper()
	said := testkit.Await(k.t, k.name+" to say something of "+name, k.said)
	of, text, _ := strings.Cut(said, " ")
	if of != name {
		k.t.Errorf("%s says %q, and is asked for %s", k.name, said, name)
	}
	return text
}

// token is that of a lock that is held, 0 if it is not.
func token(said string) uint64 {
	text, _ := strings.CutPrefix(said, "held ")
	n, _ := strconv.ParseUint(text, 10, 64) // 0
	return n
}

// talkers start the programs of both clients, at a server.
func talkers(t *testing.T, ttl string) func(url string) []*talker {
	t.Helper()
	python, typescript := setUp(t, "python"), setUp(t, "typescript")
	backends.NPM(t) // and node
	exe := installPython(t, backends.Python(t), python)
	return func(url string) []*talker {
		return []*talker{
			talk(t, "Python", exe, "-W", "error", filepath.Join(python, "source/tests/talk.py"), url, ttl),
			talk(t, "TypeScript", "node", filepath.Join(typescript, "source/programs/talk.js"), url, ttl),
		}
	}
}

// A third of all answers is spoiled, to keep-alives too. No thread of a client ends by that, no lock
// is held by two, no token is granted twice; and when the answers are right again all is as before,
// with nothing left in the queue.
func TestSpoiledAnswers(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	start := talkers(t, "3")
	store := backends.SharedRedis(t).URL()
	f, url := newFront(t, haspserve.New(t, store, "--ttl", "3s").Addr)
	all := append(start(url), start(url)...)
	f.spoils.Store(true)
	const name, grants = "spoiled", 10
	var mu sync.Mutex
	tokens, newest := map[uint64]string{}, uint64(0)
	var wait sync.WaitGroup
	for _, k := range all {
		wait.Go(func() {
			for n, tries := 0, 0; n < grants && tries < 20*grants; tries++ {
				got := token(k.tell("lock", name))
				if got == 0 {
					continue
				}
				n++
				mu.Lock()
				if tokens[got] != "" {
					t.Errorf("token %d of %s was granted to %s before", got, k.name, tokens[got])
				}
				tokens[got], newest = k.name, got
				mu.Unlock()
				for range 3 {
					mu.Lock()
					another := newest != got
					mu.Unlock()
					if k.tell("held", name) == "true" && another {
						t.Errorf("%s holds token %d after another was granted", k.name, got)
					}
				}
				k.tell("release", name)
			}
		})
	}
	wait.Wait()
	if len(tokens) < len(all)*grants {
		t.Errorf("%d grants, of %d", len(tokens), len(all)*grants)
	}
	t.Logf("%d answers spoiled", f.spoiled.Load())
	f.spoils.Store(false)
	for _, k := range all {
		if said := k.tell("lock", "afterwards"); token(said) == 0 {
			t.Errorf("%s, with right answers: %s", k.name, said)
		}
		if said := k.tell("release", "afterwards"); said != "released" {
			t.Errorf("%s, with right answers: %s", k.name, said)
		}
	}
	b := testkit.Open(t, store)
	testkit.Eventually(t, "the queue to be empty", func() bool {
		entries, err := b.List(t.Context(), name, 0)
		return err == nil && len(entries) == 0
	})
	for _, k := range all {
		k.ends()
	}
}

// A Redis without the mark of its past may have forgotten locks. That is not busy, and a client that waits
// is granted the lock when the quarantine is over.
func TestQuarantineIsNotBusy(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	start := talkers(t, "10")
	server := backends.StartRedis(t, backends.RedisOptions{})
	s := haspserve.New(t, server.URL(), "--ttl", "10s")
	for _, k := range start("http://" + s.Addr) {
		if _, err := server.Do("FLUSHALL"); err != nil {
			t.Fatal(err)
		}
		name := "quarantine/" + k.name
		if said := k.tell("try", name); !strings.HasPrefix(said, "error Quarantine: no holder of the lock") {
			t.Errorf("%s: %s", k.name, said)
		}
		k.send("lock", name)
		if said := k.hears(name); token(said) == 0 {
			t.Errorf("%s, at its end: %s", k.name, said)
		}
		k.tell("release", name)
		if said := k.tell("try", name); token(said) == 0 {
			t.Errorf("%s, afterwards: %s", k.name, said)
		}
		k.ends()
	}
}

// Behind a proxy with affinity a client goes on at another server when its own is killed, and when it
// drains: with what it holds, and with what it waits for.
func TestMovesBehindProxy(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	start := talkers(t, "20")
	store := backends.SharedRedis(t).URL()
	for what, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "drains": syscall.SIGTERM} {
		t.Run(what, func(t *testing.T) {
			one, two := haspserve.New(t, store, "--ttl", "20s"), haspserve.New(t, store, "--ttl", "20s")
			f, url := newFront(t, one.Addr)
			other := testkit.Client(t, store)
			all := start(url)
			tokens, entries, queued := map[*talker]uint64{}, map[*talker]string{}, map[*talker]*hasp.Lease{}
			holds := func(k *talker) string { return what + "/holds/" + k.name }
			waits := func(k *talker) string { return what + "/waits/" + k.name }
			for _, k := range all {
				tokens[k] = token(k.tell("lock", holds(k)))
				entries[k] = testkit.Entries(t, other, holds(k))[0].ID
				queued[k] = testkit.Lock(t, other, waits(k))
				k.send("lock", waits(k))
				testkit.Eventually(t, "it to wait", func() bool { return len(testkit.Entries(t, other, waits(k))) == 2 })
			}
			one.Signal(sig)
			f.lead(two.Addr)
			for _, k := range all {
				testkit.Eventually(t, "the other server to adopt the lock of "+k.name, func() bool {
					all := testkit.Entries(t, other, holds(k))
					return len(all) == 1 && all[0].ID != entries[k] && all[0].Token == tokens[k]
				})
				if said := k.tell("held", holds(k)); said != "true" {
					t.Errorf("%s: is it held? %s", k.name, said)
				}
				testkit.Release(t, queued[k])
				if said := k.hears(waits(k)); token(said) <= queued[k].Token() {
					t.Errorf("%s has waited, and says %s after token %d", k.name, said, queued[k].Token())
				}
				for _, name := range []string{holds(k), waits(k)} {
					if said := k.tell("release", name); said != "released" {
						t.Errorf("%s: %s", k.name, said)
					}
				}
				k.ends()
			}
		})
	}
}

// A client that waits is led to another server while its own lives on. That one must not take the
// lock for a client that has gone, in a store that does not show who waits.
func TestMovesWhileItWaits(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	start := talkers(t, "60")
	store := backends.SharedRedis(t).URL() + "?strategy=setnx"
	one, two := haspserve.New(t, store, "--ttl", "1m"), haspserve.New(t, store, "--ttl", "1m")
	f, url := newFront(t, one.Addr)
	other := testkit.Client(t, store)
	all := start(url)
	queued := map[*talker]*hasp.Lease{}
	for _, k := range all {
		queued[k] = testkit.Lock(t, other, "waits/"+k.name)
		k.send("lock", "waits/"+k.name)
	}
	wait := func(s *haspserve.Server) {
		testkit.Eventually(t, "all to wait", func() bool {
			return strings.Contains(metrics(t, s), fmt.Sprintf("\nhasp_serve_waiting %d\n", len(all)))
		})
	}
	wait(one)
	f.lead(two.Addr)
	for _, k := range all {
		if said := k.tell("lock", "moves/"+k.name); token(said) == 0 {
			t.Fatalf("%s: another lock: %s", k.name, said)
		}
	}
	wait(two)
	for _, k := range all {
		testkit.Release(t, queued[k])
		if said := k.hears("waits/" + k.name); token(said) == 0 { // by the first server it comes after a minute
			t.Errorf("%s has waited, and says %s", k.name, said)
		}
		k.ends()
	}
}

func metrics(t *testing.T, s *haspserve.Server) string {
	t.Helper()
	r, err := http.Get("http://" + s.Addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
