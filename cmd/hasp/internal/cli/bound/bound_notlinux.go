//go:build unix && !linux

package bound

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func To(pid int) (*Process, error) {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return nil, fmt.Errorf("there is no process %d", pid)
	}
	f, _ := family(pid)
	return &Process{PID: pid, Start: f.start}, nil
}

// ToCaller takes the parent: a shell that forks for $(...) must be named with --pid $$.
func ToCaller() (*Process, error) { return To(os.Getppid()) }

func awaitExit(*os.File) bool { return false }

func signalFile(*os.File, syscall.Signal) error { return syscall.ENOSYS }

func contained() bool { return false }
