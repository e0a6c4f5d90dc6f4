package group

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// commandAttr has the kernel kill the command when its parent dies. That covers this one
// process, at the very moment; the guardian sees to the rest of the group.
func commandAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adopt makes orphaned descendants our children instead of init's, so that their end is
// told to us. Where it is refused, awaitGone's regular look does.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

func executable() (string, error) { return "/proc/self/exe", nil } // also after an upgrade of the file
