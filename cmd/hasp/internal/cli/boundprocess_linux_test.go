package cli

import (
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/bound"
	"golang.org/x/sys/unix"
)

// oldKernel is hasp where a process has no pidfd.
func oldKernel() {
	bound.PidfdOpen = func(int, int) (int, error) { return -1, unix.ENOSYS }
	inScript()
}
