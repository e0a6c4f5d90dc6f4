package group

import (
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// holdingBackTTOU blocks the signal in the thread that runs do, which the kernel takes for
// ignoring it. Ignoring it with os/signal cannot be undone (Go leaves it ignored), and
// every command started later would inherit that.
func holdingBackTTOU(do func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var set, old unix.Sigset_t
	set.Val[0] = 1 << (uint(syscall.SIGTTOU) - 1)
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &set, &old) // fails for bad arguments only
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	do()
}

// DespiteTOSTOP runs do, in which this thread writes to a terminal from its background and is
// not stopped for it although the terminal says so (stty tostop). The signal would stop us
// and not the command, which would work on while nobody watches its lock.
func DespiteTOSTOP(do func()) { holdingBackTTOU(do) }
