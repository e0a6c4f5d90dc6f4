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
	if unix.PthreadSigmask(unix.SIG_BLOCK, &set, &old) != nil {
		return
	}
	do()
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
}
