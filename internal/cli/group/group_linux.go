package group

import (
	"fmt"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// commandAttr has the kernel kill the command when its parent dies. That covers this one
// process, at the very moment; the guardian sees to the rest of the group.
func commandAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// guardianAttr has the kernel continue a guardian that somebody has stopped when it is needed.
func guardianAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGCONT}
}

// adopt makes orphaned descendants our children instead of init's, so that their end is
// told to us. Where it is refused, awaitGone's regular look does.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// executable is this program: as the kernel has it, which holds also after an upgrade of the
// file, and where there is no /proc (in a chroot) by the path that it was executed by. The
// road not taken, looking for argv[0] along PATH, may find another one.
func executable() (string, error) {
	const own = "/proc/self/exe"
	err := unix.Access(own, unix.X_OK)
	if err == nil {
		return own, nil
	}
	vector, _ := unix.Auxv()
	for _, entry := range vector {
		if entry[0] == atExecFn {
			// The kernel's own words, in the memory that arguments are in.
			path := unix.BytePtrToString(*(**byte)(unsafe.Pointer(&entry[1])))
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("%s: %w", own, err)
}

const atExecFn = 31 // AT_EXECFN
