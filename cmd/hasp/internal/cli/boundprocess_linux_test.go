package cli

import "golang.org/x/sys/unix"

// oldKernel is hasp where a process has no pidfd.
func oldKernel() {
	pidfdOpen = func(int, int) (int, error) { return -1, unix.ENOSYS }
	inScript()
}
