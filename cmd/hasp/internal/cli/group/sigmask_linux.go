package group

import (
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

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
