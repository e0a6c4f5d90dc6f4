package bootclock

import (
	"syscall"
	"time"
	"unsafe"
)

// Boot reads CLOCK_BOOTTIME. The raw system call rather than x/sys: the core links
// the standard library alone. It cannot fail on any kernel that runs Go; if a sandbox
// forbids it, 0 at both ends of an interval leaves the monotonic clock in charge.
func Boot() time.Duration {
	const clockBoottime = 7
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
