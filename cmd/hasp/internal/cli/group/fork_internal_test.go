//go:build unix

package group

import (
	"os"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/testkit"
)

// The guardian has died before the command starts: the write to it causes a SIGPIPE, which is not
// the command's end.
func TestLifelineWithoutReader(t *testing.T) {
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	r, lifeline := pipe()
	r.Close()
	_, failure := pipe()
	ended := make(chan syscall.WaitStatus, 1)
	_, err := children.start(func() (int, error) {
		return startCommand("/bin/sh", []string{"sh", "-c", "exit 5"}, os.Environ(), lifeline, failure)
	}, func(_ int, ws syscall.WaitStatus) { ended <- ws })
	if err != nil {
		t.Fatal(err)
	}
	if ws := testkit.Await(t, "the command", ended); ws.ExitStatus() != 5 {
		t.Errorf("%v: signal %v, status %d", ws, ws.Signal(), ws.ExitStatus())
	}
}
