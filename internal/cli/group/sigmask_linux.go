package group

import (
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// holding runs do while this thread holds signals back. Those of job control the kernel then
// takes for ignored; a process forked meanwhile inherits that they are held. Ignoring them
// with os/signal cannot be undone (Go leaves them ignored), and every command started later
// would inherit that.
func holding(set unix.Sigset_t, do func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var old unix.Sigset_t
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &set, &old) // fails for bad arguments only
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	do()
}

// holdingBackTTOU lets do change the terminal from its background.
func holdingBackTTOU(do func()) {
	var set unix.Sigset_t
	set.Val[0] = 1 << (uint(syscall.SIGTTOU) - 1)
	holding(set, do)
}

// DespiteTOSTOP runs do, in which this thread writes to a terminal from its background and is
// not stopped for it although the terminal says so (stty tostop). The signal would stop us
// and not the command, which would work on while nobody watches its lock.
func DespiteTOSTOP(do func()) { holdingBackTTOU(do) }

// holdingBackAll has a guardian that is forked in do hear no signal from its first moment:
// until its own code runs, it would die of them.
func holdingBackAll(do func()) {
	var set unix.Sigset_t
	for i := range set.Val {
		set.Val[i] = ^set.Val[i]
	}
	holding(set, do)
}
