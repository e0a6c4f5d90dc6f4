package history

import (
	"syscall"
	"unsafe"
)

// Now reads CLOCK_MONOTONIC: nanoseconds since boot, one scale for all processes of the machine and
// all its processors, never stepped. (Processes in separate time namespaces would see offsets;
// tests do not run there.) CLOCK_BOOTTIME would also work: the checks compare stamps and measure
// nothing, and a suspend moves both for all processes.
//
// Go's own monotonic reading is the same clock, but time.Time gives only differences from a start
// that differs between processes, and under testing/synctest it is fake. The raw system call,
// because package syscall has no wrapper for it.
func Now() Time {
	const clockMonotonic = 1
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		panic("history: no monotonic clock: " + errno.Error()) // without it nothing can be checked
	}
	return Time(ts.Nano())
}
