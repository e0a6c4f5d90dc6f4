//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// countJob increments the number in a file, in two steps that only the lock keeps
// together, and notes each grant in the journal: token, nanoseconds, pid.
func countJob(j job) error {
	safetyNet = time.Hour // a wake-up that was lost must show
	c, err := hasp.Open(context.Background(), "file://"+j.Dir)
	if err != nil {
		return err
	}
	journal, err := os.OpenFile(j.File+".journal", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for range j.Times {
		l, err := c.Mutex(j.Name).Lock(context.Background())
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(journal, "%d %d %d\n", l.Token(), time.Now().UnixNano(), os.Getpid()); err != nil {
			return err
		}
		if err := increment(j.File); err != nil {
			return err
		}
		if err := l.Release(context.Background()); err != nil {
			return err
		}
	}
	fmt.Println("done")
	untilEOF()
	return c.Close()
}

// increment writes lines of one length, so that a kill leaves the old or the new number.
func increment(file string) error {
	n, err := number(file)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%-20d", n+1)
	return err
}

func number(file string) (int, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// grant is a line of the journal.
type grant struct {
	token uint64
	at    time.Time
	pid   int
}

func readJournal(t testing.TB, file string) (grants []grant) {
	t.Helper()
	b, err := os.ReadFile(file + ".journal")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var g grant
		var ns int64
		if _, err := fmt.Sscan(line, &g.token, &ns, &g.pid); err != nil {
			t.Fatalf("journal line %q: %v", line, err)
		}
		g.at = time.Unix(0, ns)
		grants = append(grants, g)
	}
	return grants
}

// checkTokens: an entry's token is its place in the order, so grants in another order than
// that of the entries show as tokens that do not grow.
func checkTokens(t testing.TB, grants []grant) {
	t.Helper()
	for i := 1; i < len(grants); i++ {
		if grants[i].token <= grants[i-1].token {
			t.Errorf("grant %d has token %d after %d", i, grants[i].token, grants[i-1].token)
		}
	}
}

// S1, S2, L5: no update is lost among many processes, tokens grow, and the order of the
// grants is that of the entries.
func TestManyProcessesCount(t *testing.T) {
	t.Parallel()
	processesCount(t, 16, 50)
}

func TestManyMoreProcessesCount(t *testing.T) {
	testtier.Long(t)
	processesCount(t, 64, 200)
}

func processesCount(t *testing.T, processes, times int) {
	dir := storeDir(t)
	file := filepath.Join(t.TempDir(), "counter")
	var all []*child
	for range processes {
		all = append(all, start(t, job{Do: "count", Dir: dir, Name: "counter", File: file, Times: times}))
	}
	for _, c := range all {
		c.must("ready")
	}
	for _, c := range all {
		c.counts(file)
	}
	if n, err := number(file); n != processes*times || err != nil {
		t.Errorf("counted %d of %d, %v", n, processes*times, err)
	}
	grants := readJournal(t, file)
	if len(grants) != processes*times {
		t.Errorf("%d grants of %d", len(grants), processes*times)
	}
	checkTokens(t, grants)
}

// counts waits until a child is done, for as long as some child is granted the lock.
func (c *child) counts(file string) {
	c.t.Helper()
	for before := -1; ; {
		select {
		case s := <-c.lines:
			if s != "done" {
				c.t.Fatalf("a child said %q", s)
			}
			return
		case <-time.After(patience):
		}
		n := len(readJournal(c.t, file))
		if n == before {
			c.t.Fatalf("no grant for %s, after %d", patience, n)
		}
		before = n
	}
}

// S1, S2, L1: the same while one is killed every 100 ms, wherever it happens to be. The
// increment of a killed process may or may not have been counted; no other is lost, no process
// gets stuck, and the next grant follows the kill at once.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	file := filepath.Join(t.TempDir(), "counter")
	start := func() *child {
		return start(t, job{Do: "count", Dir: dir, Name: "counter", File: file, Times: 1 << 30})
	}
	var all []*child
	for range 8 {
		all = append(all, start())
	}
	for _, c := range all {
		c.must("ready")
	}
	var kills []time.Time
	for range 30 {
		time.Sleep(100 * time.Millisecond)
		i := rand.IntN(len(all))
		kills = append(kills, time.Now())
		all[i].kill()
		all[i] = start()
	}
	testkit.Eventually(t, "a grant after the last kill", func() bool {
		grants := readJournal(t, file)
		return len(grants) > 0 && grants[len(grants)-1].at.After(kills[len(kills)-1])
	})
	for _, c := range all {
		c.kill()
	}
	grants := readJournal(t, file)
	checkTokens(t, grants)
	n, err := number(file)
	if low := len(grants) - len(kills) - len(all); err != nil || n < low || n > len(grants) {
		t.Errorf("counted %d, %v; %d grants, of which at most %d were killed", n, err, len(grants), len(kills)+len(all))
	}
	// A machine that does other things may take longer than the promised 100 ms; being
	// stuck would take until the slow look of slowRetry, which is hours away.
	worst := time.Duration(0)
	for _, kill := range kills {
		next := patience
		for _, g := range grants {
			if g.at.After(kill) {
				next = g.at.Sub(kill)
				break
			}
		}
		worst = max(worst, next)
	}
	t.Logf("%d grants, %d kills, longest wait for a grant after a kill %s", len(grants), len(kills), worst)
	if worst > patience/2 {
		t.Errorf("no grant for %s after a kill", worst)
	}
}

// stopJob stops itself inside a critical section, at the first write of an Enqueue.
func stopJob(j job) error {
	c, err := hasp.Open(context.Background(), "file://"+j.Dir)
	if err != nil {
		return err
	}
	setProbe(func(write bool) {
		if write {
			probe.Store(nil)
			fmt.Println("stops")
			_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
			time.Sleep(100 * time.Millisecond) // it may take effect a little later
		}
	})
	l, err := c.Mutex(j.Name).Lock(context.Background())
	if err != nil {
		return err
	}
	fmt.Println("holds")
	untilEOF()
	return l.Release(context.Background())
}

// L3: a process that is stopped inside its critical section keeps all others out of that
// file, but not in a call whose context has ended.
func TestStoppedInside(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	c := testkit.Client(t, "file://"+dir)
	held, err := c.Mutex("a").Lock(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, job{Do: "stop", Dir: dir, Name: "a"})
	p.must("stops")
	awaitStopped(t, p.Process.Pid)
	for what, call := range map[string]func(context.Context) error{
		"lock":    func(ctx context.Context) error { _, err := c.Mutex("a").Lock(ctx); return err },
		"try":     func(ctx context.Context) error { _, err := c.Mutex("a").TryLock(ctx); return err },
		"inspect": func(ctx context.Context) error { _, err := c.Inspect(ctx, "a"); return err },
		"release": held.Release,
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		began := time.Now()
		err := call(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the context's error", what, err)
		}
		// 250 ms are promised; the rest is for a busy machine. A call that ignores its context
		// waits for as long as the other is stopped, which is for ever.
		if took := time.Since(began); took > testkit.Patience {
			t.Errorf("%s took %s to end with its context", what, took)
		}
	}
	if err := p.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.must("holds") // the release went on in the background
}

// A Publish whose context ends while it waits for the file has done nothing, and does nothing
// later: no value comes after one that was published when it had returned.
func TestPublishIsNeverLate(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	s, b := openTestSession(t, dir), openBackend(t, dir)
	e := s.Ticket(mutexRequest("a", "id")).(*ticket)
	if _, err := e.Enqueue(patient(t)); err != nil {
		t.Fatal(err)
	}
	p := start(t, job{Do: "stop", Dir: dir, Name: "a"})
	p.must("stops")
	awaitStopped(t, p.Process.Pid)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := e.Publish(ctx, []byte("old")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("publish beside a stopped process: %v", err)
	}
	if err := p.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := e.Publish(patient(t), []byte("new")); err != nil {
		t.Fatal(err)
	}
	leftBy := time.Now().Add(100 * time.Millisecond)
	for time.Now().Before(leftBy) {
		list, err := b.List(patient(t), "a", 1)
		if err != nil || len(list) != 1 || string(list[0].Value) != "new" {
			t.Fatal(list, err)
		}
	}
	leave(t, e)
	p.must("holds")
}

// awaitStopped waits until the kernel says that a process is stopped.
func awaitStopped(t testing.TB, pid int) {
	t.Helper()
	var ws unix.WaitStatus
	for {
		got, err := unix.Wait4(pid, &ws, unix.WUNTRACED|unix.WNOHANG, nil)
		if err != nil && err != unix.EINTR {
			t.Fatalf("wait for a stop: %v", err)
		}
		if got == pid && ws.Stopped() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// forkJob holds a name, and has a child that outlives it.
func forkJob(j job) error {
	c, err := hasp.Open(context.Background(), "file://"+j.Dir)
	if err != nil {
		return err
	}
	if _, err := c.Mutex(j.Name).Lock(context.Background()); err != nil {
		return err
	}
	sleep := exec.Command("sleep", "100")
	if err := sleep.Start(); err != nil {
		return err
	}
	fmt.Println(sleep.Process.Pid)
	untilEOF()
	return nil
}

// L1: descriptors do not go to children, so a child that lives on does not keep its dead
// parent's lock.
func TestChildDoesNotInherit(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	p := start(t, job{Do: "fork", Dir: dir, Name: "a"})
	sleeper, err := strconv.Atoi(p.says())
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Process.Kill()
	defer unix.Kill(sleeper, unix.SIGKILL)
	if err := unix.Kill(sleeper, 0); err != nil {
		t.Fatalf("the sleeping grandchild: %v", err)
	}
	l, err := testkit.Client(t, "file://"+dir).Mutex("a").Lock(patient(t))
	if err != nil {
		t.Fatalf("the parent is dead, its child lives: %v", err)
	}
	if err := l.Release(patient(t)); err != nil {
		t.Error(err)
	}
}
