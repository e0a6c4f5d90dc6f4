//go:build unix

package history

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testkit"
)

const (
	beliefEnv = "HASP_HISTORY_TEST_BELIEF"
	leaseTTL  = 500 * time.Millisecond
	renewStep = 10 * time.Millisecond
)

// TestHolderProcess is not a test: it is the holder that TestStoppedHolder stops. It believes in
// its lease by the clock, or by a flag that a separate loop clears, which stops when the process
// does.
func TestHolderProcess(t *testing.T) {
	dir := os.Getenv(dirEnv)
	if dir == "" {
		t.Skip("only as a child of TestStoppedHolder")
	}
	r, err := Open(filepath.Join(dir, "history"))
	if err != nil {
		t.Fatal(err)
	}
	op := r.Acquire("stopped", "x", Exclusive())
	granted := time.Now()
	op.Granted(1, 0)
	held := func() bool { return time.Since(granted) < leaseTTL }
	if os.Getenv(beliefEnv) == "cached" {
		var over atomic.Bool
		go func() {
			for range leaseTTL / renewStep {
				time.Sleep(renewStep)
			}
			over.Store(true)
		}()
		held = func() bool { return !over.Load() }
	}
	gone := make(chan struct{})
	stop := op.Watch(held, gone, time.Millisecond)
	for held() {
		time.Sleep(time.Millisecond)
	}
	close(gone)
	stop()
	op.Releasing()
	op.NotHeld(nil)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// A holder that was stopped for longer than its lease records its loss late, after the
// next grant. That alone is no violation; asking Held() and hearing yes then is one.
func TestStoppedHolder(t *testing.T) {
	if vs := Check(stopHolder(t, "by the clock"), Options{Fencing: true}); len(vs) > 0 {
		t.Errorf("an honest holder: %s", texts(vs))
	}
	vs := Check(stopHolder(t, "cached"), Options{Fencing: true})
	if got := checksOf(vs); !slices.Equal(got, []string{"exclusion"}) {
		t.Errorf("a holder with a cached flag: only %v objected: %s", got, texts(vs))
	}
}

// stopHolder begins again where the holder, on a busy machine, had ended before it was stopped.
func stopHolder(t *testing.T, belief string) History {
	t.Helper()
	for range 5 {
		h := stopHolderOnce(t, belief)
		of := func(client string) Operation {
			return h[slices.IndexFunc(h, func(o Operation) bool { return o.Client == client })]
		}
		stopped := of("stopped")
		if stopped.Lost == 0 || stopped.Release != NotHeld {
			t.Fatalf("the holder did not finish its record: %+v", stopped)
		}
		if stopped.Lost > of("next").Return {
			return h
		}
	}
	t.Fatal("the holder always ended before the next grant")
	return nil
}

func stopHolderOnce(t *testing.T, belief string) History {
	t.Helper()
	dir := t.TempDir()
	w := exec.Command(os.Args[0], "-test.run=^TestHolderProcess$")
	w.Env = append(os.Environ(), dirEnv+"="+dir, beliefEnv+"="+belief)
	w.Stderr = os.Stderr
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Wait()
	defer w.Process.Kill()
	path := filepath.Join(dir, "history")
	testkit.Eventually(t, "the holder's first Held()", func() bool {
		h, err := Load(path)
		return err == nil && len(h) == 1 && h[0].LastHeld > 0
	})
	if err := w.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// The lease runs out at the latest one ttl from now; the store gives it away.
	time.Sleep(leaseTTL)
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	next := r.Acquire("next", "x", Exclusive())
	next.Granted(2, 0)
	if err := w.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(); err != nil {
		t.Fatal(err)
	}
	next.Releasing()
	next.Released()
	return mustHistory(t, r)
}
