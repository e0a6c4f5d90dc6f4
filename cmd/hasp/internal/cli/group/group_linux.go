package group

import (
	"fmt"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// commandAttr makes the kernel kill the command when its parent dies. That covers only this
// process, at that very moment; the guardian kills the rest of the group.
func commandAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// guardianAttr makes the kernel continue a stopped guardian when it is needed.
func guardianAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGCONT}
}

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
	vector, _ := unix.Auxv()
	for _, entry := range vector {
		if entry[0] == atExecFn {
			// The path from the kernel, in the memory of the arguments.
			path := unix.BytePtrToString(*(**byte)(unsafe.Pointer(&entry[1])))
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("%s: %w", own, err)
}

const atExecFn = 31 // AT_EXECFN
