//go:build unix

package group

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testkit"
)

// TERM and CONT come while the launcher is not the command yet, and before they are handed out the
// command has stopped itself. It still ends: the CONT comes with the TERM. Sent at once, when
// nothing is stopped yet, it would be lost, and the TERM would wait for a continue of the command.
func TestStoppedBeforeItsSignals(t *testing.T) {
	goOn := filepath.Join(t.TempDir(), "go")
	g, err := Start("/bin/sh", []string{"sh", "-c", "until [ -e " + goOn + " ]; do sleep 0.01; done; kill -STOP $$; exec sleep 1000"}, os.Environ(), false)
	if err != nil {
		t.Fatal(err)
	}
	for launching := true; launching; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		launching = g.launching
		g.mu.Unlock()
	}
	g.mu.Lock()
	g.launching = true // as it was until now; run does not look before the command ends
	g.mu.Unlock()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		if err := g.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if e := testkit.Await(t, "the stop", g.Events()); e.Kind != Stopped {
		t.Fatalf("got %v", e)
	}
	g.becomesCommand(nil)
	if e := testkit.Await(t, "the end", g.Events()); e.Kind != Exited || e.Status.Signal != syscall.SIGTERM {
		t.Errorf("got %v", e)
	}
	if e := testkit.Await(t, "an empty group", g.Events()); e.Kind != Gone {
		t.Errorf("got %v", e)
	}
}
