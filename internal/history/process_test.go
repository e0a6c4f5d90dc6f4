//go:build unix

package history

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testkit"
)

const (
	dirEnv  = "HASP_HISTORY_TEST_DIR"
	lockEnv = "HASP_HISTORY_TEST_LOCK"
	rounds  = 40
)

// TestWorkerProcess is not a test: TestManyProcesses runs it in other processes.
func TestWorkerProcess(t *testing.T) {
	dir := os.Getenv(dirEnv)
	if dir == "" {
		t.Skip("only as a child of TestManyProcesses")
	}
	r, err := Open(filepath.Join(dir, "history"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	flock := func(how int) {
		if os.Getenv(lockEnv) == "none" {
			return
		}
		if err := syscall.Flock(int(f.Fd()), how); err != nil {
			t.Fatal(err)
		}
	}
	for range rounds {
		op := r.Acquire(fmt.Sprint("p", os.Getpid()), "file", Exclusive())
		flock(syscall.LOCK_EX)
		// The counter is only safe because the lock is held.
		var b [8]byte
		f.ReadAt(b[:], 0)
		token := binary.BigEndian.Uint64(b[:]) + 1
		time.Sleep(100 * time.Microsecond)
		binary.BigEndian.PutUint64(b[:], token)
		if _, err := f.WriteAt(b[:], 0); err != nil {
			t.Fatal(err)
		}
		op.Granted(token, 0)
		op.Releasing()
		flock(syscall.LOCK_UN)
		op.Released()
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// runWorkers lets three processes compete for a file and returns what they recorded.
func runWorkers(t *testing.T, lock string) History {
	t.Helper()
	dir := t.TempDir()
	var workers []*exec.Cmd
	for range 3 {
		w := exec.Command(os.Args[0], "-test.run=^TestWorkerProcess$")
		w.Env = append(os.Environ(), dirEnv+"="+dir, lockEnv+"="+lock)
		w.Stderr = os.Stderr
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
	}
	for _, w := range workers {
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
	}
	h, err := Load(filepath.Join(dir, "history"))
	if err != nil {
		t.Fatal(err)
	}
	if len(h) != 3*rounds {
		t.Errorf("%d operations on record, want %d", len(h), 3*rounds)
	}
	return h
}

// Three processes, one file of records. Under a real lock of the kernel's the stamps of
// all three must fit together, or the clocks are not comparable; without it they must not.
func TestManyProcesses(t *testing.T) {
	before := Now()
	h := runWorkers(t, "flock")
	after := Now()
	if vs := Check(h, Options{Fencing: true}); len(vs) > 0 {
		t.Errorf("under flock: %s", texts(vs))
	}
	for _, o := range h {
		if o.Call <= before || o.ReleaseReturn >= after {
			t.Fatalf("a child's stamps are not between ours, %d and %d: %+v", before, after, o)
		}
	}
	var got string
	for range 10 { // one worker may have ended before the next begins
		got = strings.Join(checksOf(Check(runWorkers(t, "none"), Options{Fencing: true})), " ")
		if strings.Contains(got, "tokens") {
			return
		}
	}
	t.Errorf("without a lock only %q objected", got)
}

// A worker that is killed leaves what it knew, and nothing that spoils the rest.
func TestKilledWorkerLeavesItsRecord(t *testing.T) {
	dir := t.TempDir()
	w := exec.Command(os.Args[0], "-test.run=^TestWorkerProcess$")
	w.Env = append(os.Environ(), dirEnv+"="+dir, lockEnv+"=flock")
	// Holding the lock keeps the worker in its first acquire.
	f, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Wait()
	path := filepath.Join(dir, "history")
	testkit.Eventually(t, "the worker's first line", func() bool {
		h, err := Load(path)
		return err == nil && len(h) == 1
	})
	if err := w.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.Wait()
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Acquire("next", "file", Exclusive()).Granted(1, 0)
	h := mustHistory(t, r)
	if len(h) != 2 || h[0].Outcome != Pending || h[1].Outcome != Granted || h[0].Call >= h[1].Call {
		t.Errorf("%+v", h)
	}
}
