//go:build unix

package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/linear"
)

const (
	forgetDirEnv = "HASP_FORGET_DIR"
	forgetURLEnv = "HASP_FORGET_URL"
	forgetTTLEnv = "HASP_FORGET_TTL"
)

// TestForgetWorker is not a test: forgetRun runs it in other processes.
func TestForgetWorker(t *testing.T) {
	dir := os.Getenv(forgetDirEnv)
	if dir == "" {
		t.Skip("only as a child of TestForgetting")
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	rec, err := history.Open(filepath.Join(dir, "history"))
	must(t, err)
	ttl, err := time.ParseDuration(os.Getenv(forgetTTLEnv))
	must(t, err)
	c := openAtLast(ctx, os.Getenv(forgetURLEnv), ttl)
	if c == nil {
		return
	}
	defer func() { _ = c.Close() }()
	var workers sync.WaitGroup
	for _, name := range forgetNames {
		workers.Go(func() { work(ctx, c, ttl, rec, dir, name) })
	}
	workers.Wait()
	must(t, rec.Close())
}

// openAtLast opens the store as soon as it is there: the first fault may come before a process has
// started. It is nil if the test ends before.
func openAtLast(ctx context.Context, storeURL string, ttl time.Duration) *hasp.Client {
	for {
		c, err := hasp.Open(ctx, storeURL, hasp.WithTTL(ttl))
		if err == nil {
			return c
		}
		if ctx.Err() != nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// forgetNames are the names of a mutex, a read-write lock and a semaphore.
var forgetNames = []string{"a", "b", "c"}

const forgetPermits = 3

// chosen is a locker of the name at random, and what is written by the holder.
func chosen(c *hasp.Client, name string) (hasp.Locker, history.Claim, string) {
	switch {
	case name == "c":
		k := rand.N[int64](forgetPermits) + 1
		return c.Semaphore(name, forgetPermits).Locker(k), history.Permits(k, forgetPermits), "count"
	case name == "b" && rand.N(2) == 0:
		return c.RWMutex(name).RLocker(), history.Shared(), "read"
	case name == "b":
		return c.RWMutex(name), history.Exclusive(), "write"
	}
	return c.Mutex(name), history.Exclusive(), "write"
}

// work takes one lock over and over. Most of the time it is held for longer than a TTL, so that
// almost every fault finds a holder that it makes the server forget.
func work(ctx context.Context, c *hasp.Client, ttl time.Duration, rec *history.Recorder, dir, name string) {
	for n := 0; ctx.Err() == nil; n++ {
		hold := rand.N(20 * time.Millisecond)
		if n%3 == 0 {
			hold = 3 * ttl / 2
		}
		locker, claim, what := chosen(c, name)
		h := recordedhold.Hold{
			Client: c, Who: fmt.Sprint("process ", os.Getpid()), Name: name, For: hold, TTL: ttl,
			Locker: locker, Claim: claim,
			Begin: func(recordedhold.Lease) { note(dir, name, fmt.Sprintf("begin %d\n", time.Now().UnixMicro())) },
			End:   func(l recordedhold.Lease) { use(dir, name, what, l) },
		}
		if h.Run(ctx, rec) != nil {
			time.Sleep(20 * time.Millisecond) // the store is away
		}
	}
}

// use reads or writes a resource that checks no tokens, if the lock is held. A second line says
// that it is held still: without it the process may have been stopped before the first, for longer
// than any lease allows.
func use(dir, name, what string, l recordedhold.Lease) {
	if l.Held() {
		note(dir, name, fmt.Sprintf("%s %d\n", what, l.Token()))
	}
	if l.Held() {
		note(dir, name, fmt.Sprintf("held %d\n", l.Token()))
	}
}

func note(dir, name, line string) {
	f, err := os.OpenFile(filepath.Join(dir, "uses."+name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(line)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		panic(err)
	}
}

// uses returns when the name was granted last, and how many uses came after one of a later holder
// that excludes them, although the lock was held before and after.
func uses(t *testing.T, dir, name string) (granted time.Time, stale int) {
	text, err := os.ReadFile(filepath.Join(dir, "uses."+name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	late, written, used := map[uint64]bool{}, uint64(0), uint64(0)
	for line := range strings.Lines(string(text)) {
		what, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		token, err := strconv.ParseUint(number, 10, 64)
		must(t, err)
		switch {
		case what == "held" && late[token]:
			stale++
		case what == "begin":
			granted = time.UnixMicro(int64(token))
		case what == "write" && token < used, what == "read" && token < written:
			late[token] = true
		case what == "write":
			written = token
		}
		if what != "begin" {
			used = max(used, token)
		}
	}
	return granted, stale
}

// forgetRun is processes that contend for locks of a store that forgets.
type forgetRun struct {
	dir       string
	ttl       time.Duration
	processes []*os.Process
	end       func()
}

const forgetProcesses = 6

func startForgetRun(t *testing.T, storeURL string, ttl time.Duration) *forgetRun {
	t.Helper()
	r := &forgetRun{dir: t.TempDir(), ttl: ttl}
	var all []*exec.Cmd
	var ends []io.Closer
	var texts []*strings.Builder
	for range forgetProcesses {
		p := exec.Command(os.Args[0], "-test.run=^TestForgetWorker$")
		p.Env = append(os.Environ(), forgetDirEnv+"="+r.dir, forgetURLEnv+"="+storeURL, forgetTTLEnv+"="+ttl.String())
		out := new(strings.Builder)
		p.Stdout, p.Stderr = out, os.Stderr
		stdin, err := p.StdinPipe()
		must(t, err)
		must(t, p.Start())
		all, ends, texts = append(all, p), append(ends, stdin), append(texts, out)
		r.processes = append(r.processes, p.Process)
	}
	r.end = sync.OnceFunc(func() {
		for _, e := range ends {
			_ = e.Close()
		}
		for i, p := range all {
			if err := p.Wait(); err != nil {
				t.Errorf("process: %v: %s", err, texts[i])
			}
		}
	})
	t.Cleanup(r.end)
	return r
}

// granted waits until each lock has a grant that is newer than the moment, and returns how much
// newer the latest of them is.
func (r *forgetRun) granted(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	var last time.Time
	testkit.Eventually(t, "grants after the fault", func() bool {
		last = since
		for _, name := range forgetNames {
			granted, _ := uses(t, r.dir, name)
			if !granted.After(since) {
				return false
			}
			if granted.After(last) {
				last = granted
			}
		}
		return true
	})
	return last.Sub(since)
}

// mostBehind is how long a replica may be cut off: sentinels do not promote one that has had no
// master for five seconds.
const mostBehind = 3 * time.Second

// someGranted waits for a grant, for at most so long.
func (r *forgetRun) someGranted(t *testing.T, most time.Duration) {
	t.Helper()
	began := time.Now()
	for time.Since(began) < most {
		for _, name := range forgetNames {
			if granted, _ := uses(t, r.dir, name); granted.After(began) {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// halfStopped stops half of the processes while the store fails over, and until another one was
// granted a lock. A failover breaks every connection: a holder that is not stopped asks again at
// once, and mostly learns that it was forgotten before a new server can grant to anyone.
func (r *forgetRun) halfStopped(t *testing.T, failOver func()) {
	t.Helper()
	stopped := r.processes[:forgetProcesses/2]
	for _, p := range stopped {
		must(t, p.Signal(syscall.SIGSTOP))
	}
	defer func() {
		for _, p := range stopped {
			must(t, p.Signal(syscall.SIGCONT))
		}
	}()
	failOver()
	r.someGranted(t, r.ttl/2)
}

// lost returns the number of leases that were lost so far.
func (r *forgetRun) lost(t *testing.T) (n int) {
	t.Helper()
	h, err := history.Load(filepath.Join(r.dir, "history"))
	must(t, err)
	for _, o := range h {
		if o.Lost > 0 {
			n++
		}
	}
	return n
}

// check returns the moments at which two held, the stale uses and the number of lost leases.
func (r *forgetRun) check(t *testing.T) (found []history.Violation, stale, lost int) {
	t.Helper()
	h, err := history.Load(filepath.Join(r.dir, "history"))
	must(t, err)
	for _, name := range forgetNames {
		_, n := uses(t, r.dir, name)
		stale += n
	}
	return linear.Check(h, linear.Options{Fencing: true}), stale, r.lost(t)
}
