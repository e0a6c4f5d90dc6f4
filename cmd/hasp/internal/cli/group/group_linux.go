package group

import (
	"fmt"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adopt makes orphaned descendants our children instead of init's, so that this process learns of
// their end. Where that is refused, awaitGone finds out by polling.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// executable is this program: the kernel's link, which is right even after an upgrade of the file,
// or without /proc (in a chroot) the path that it was executed by. The alternative, looking for
// argv[0] along PATH, may find another program.
func executable() (string, error) {
	const own = "/proc/self/exe"
	err := unix.Access(own, unix.X_OK)
	if err == nil {
		return own, nil
	}
	if path := executedAs(); path != nil {
		return filepath.Abs(unix.BytePtrToString(path))
	}
	return "", fmt.Errorf("%s: %w", own, err)
}

// executedAs is the path by which this program was executed, from the kernel, behind the memory of the
// arguments and the environment; nil if it is not known.
func executedAs() *byte {
	at := auxiliary(atExecFn)
	return *(**byte)(unsafe.Pointer(&at))
}

// What the kernel tells a program about itself: its first instruction, and executedAs.
const (
	atEntry  = 9  // AT_ENTRY
	atExecFn = 31 // AT_EXECFN
)

// auxiliary is 0 for what the kernel has not told.
func auxiliary(kind uintptr) uintptr {
	vector, _ := unix.Auxv()
	for _, entry := range vector {
		if entry[0] == kind {
			return entry[1]
		}
	}
	return 0
}
