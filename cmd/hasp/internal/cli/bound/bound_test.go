//go:build unix

package bound

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testkit"
)

// A Process tells of the end of its process, with a pidfd and where there is none.
func TestBoundProcessEnds(t *testing.T) {
	for _, pidfd := range []bool{true, false} {
		c := exec.Command("sleep", "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		b, err := To(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if !pidfd {
			b = &Process{PID: b.PID}
		}
		ended := b.Ended()
		select {
		case <-ended:
			t.Errorf("pidfd %v: the process lives", pidfd)
		default:
		}
		if err := b.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_ = c.Wait() // by the signal
		select {
		case <-ended:
		case <-time.After(testkit.Patience):
			t.Errorf("pidfd %v: no end is told", pidfd)
		}
	}
}

// Process 1 of the machine takes over orphans.
func TestAdopts(t *testing.T) {
	if !contained() && !(&Process{PID: 1}).Adopts() {
		t.Error("process 1")
	}
	if (&Process{PID: os.Getpid()}).Adopts() {
		t.Error("this process")
	}
}
