package group

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt makes orphaned descendants our children instead of init's, so that this process learns of
// their end. Where that is refused, gone finds out by polling, and nothing is known of detached
// processes.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// Executable is the path by which another process of this program is started: the kernel's link,
// which is right even after an upgrade of the file. Without /proc (in a chroot) it is the file that a
// shell finds by the name of this one. The kernel knows the path that was executed, at an address
// that only unsafe code can read.
func Executable() (string, error) {
	const own = "/proc/self/exe"
	if unix.Access(own, unix.X_OK) == nil {
		return own, nil
	}
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// onParentDeath has the process get a signal when the thread that starts it ends.
func onParentDeath(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// holdingBackTTOU blocks the signal in the thread that runs do; for the kernel that counts as
// ignoring it. Ignoring it with os/signal cannot be undone (Go leaves it ignored), and every
// command started later would inherit that.
func holdingBackTTOU(do func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var set, old unix.Sigset_t
	set.Val[0] = 1 << (uint(syscall.SIGTTOU) - 1)
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &set, &old) // fails only for bad arguments
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	do()
}

// DespiteTOSTOP runs do. There this thread may write to a terminal from its background and is not
// stopped, even with stty tostop. The signal would stop hasp and not the command, which would keep
// running with no process watching its lock.
func DespiteTOSTOP(do func()) { holdingBackTTOU(do) }
