package certmagichasp_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/hasplock/hasp/adapters/certmagichasp"
	"github.com/hasplock/hasp/adapters/internal/processes"
	_ "github.com/hasplock/hasp/filelock"
)

const key = "issue_cert_*.example.com"

// nolock is a storage whose locks do nothing, as that of a bucket may be.
type nolock struct{ certmagic.Storage }

func storage(t *testing.T, dir string) *certmagichasp.Storage {
	return certmagichasp.New(nolock{&certmagic.FileStorage{Path: filepath.Join(dir, "storage")}}, processes.Client(t, dir))
}

// Two processes take turns, and keep what they store in the storage beneath. The control: with the
// storage alone they meet.
func TestProcesses(t *testing.T) {
	if dir, mode, is := processes.Child(); is {
		s := storage(t, dir)
		for range 5 {
			if mode == "locked" {
				if err := s.Lock(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			if err := processes.Inside(dir, 50*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if mode == "locked" {
				if err := s.Unlock(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
		}
		return
	}
	dir := t.TempDir()
	for _, out := range processes.Run(t, 2, dir, "locked") {
		t.Error(out)
	}
	if n := len(processes.Runs(t, dir)); n != 10 {
		t.Errorf("%d runs", n)
	}
	out := strings.Join(processes.Run(t, 8, t.TempDir(), "control"), "")
	if !strings.Contains(out, processes.ErrOverlap.Error()) {
		t.Errorf("the control was not caught: %s", out)
	}
}

// After a loss another goroutine has the lock, and the first one's Unlock leaves it alone.
func TestLoss(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	s := storage(t, dir)
	if err := s.Store(ctx, "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if !s.Exists(ctx, "a/b") {
		t.Error("the storage beneath is not used")
	}
	if err := s.Lock(ctx, key); err != nil {
		t.Fatal(err)
	}
	if got, err := s.TryLock(ctx, key); got || err != nil {
		t.Errorf("a held lock: %t, %v", got, err)
	}
	if err := processes.Lose(ctx, processes.Client(t, dir), "certmagic/"+key); err != nil {
		t.Fatal(err)
	}
	if got, err := s.TryLock(ctx, key); !got || err != nil {
		t.Errorf("a lost lock: %t, %v", got, err)
	}
	if err := s.Unlock(ctx, key); err != nil {
		t.Errorf("the lost one: %v", err)
	}
	if got, err := storage(t, dir).TryLock(ctx, key); got || err != nil {
		t.Errorf("the successor's: %t, %v", got, err)
	}
	if err := s.Unlock(ctx, key); err != nil {
		t.Error(err)
	}
	if err := s.Unlock(ctx, key); err == nil {
		t.Error("Unlock without Lock")
	}
}
