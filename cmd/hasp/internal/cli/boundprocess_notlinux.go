//go:build unix && !linux

package cli

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func bindTo(pid int) (*boundProcess, error) {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return nil, fmt.Errorf("there is no process %d", pid)
	}
	return &boundProcess{pid: pid}, nil
}

// bindToCaller takes the parent: a shell that forks for $(...) must be named with --pid $$.
func bindToCaller() (*boundProcess, error) { return bindTo(os.Getppid()) }

func awaitExit(*os.File) bool { return false }

func signalFile(*os.File, syscall.Signal) error { return syscall.ENOSYS }
