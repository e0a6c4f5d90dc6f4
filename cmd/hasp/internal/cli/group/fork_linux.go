package group

import (
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Here the guardian and the command are forks of this process: see forkchild_linux.go. The alternative,
// syscall.ForkExec, runs no code of ours between fork and exec, so that both had to be processes of this
// program's binary, as on other systems (see spawn). With these two more starts of a Go program the
// command began 2 to 3 ms later.

const launchers = false

// startCommand forks the command. The child writes its number, which is that of its group, to the
// lifeline before it becomes the command: there is no moment in which the command runs and the guardian
// does not know it. If hasp dies before the number is written, the child dies (of the parent-death
// signal) or still writes it; the content of the pipe reaches the guardian even if the child then dies.
// The alternative, hasp writing the number after the fork, leaves the command a moment before that:
// enough to start a child and kill its parent.
//
// It does not wait for the exec: a file system may not answer.
func startCommand(path string, argv, env []string, lifeline, failure *os.File) (pid int, err error) {
	c := commandChild{lifeline: none, failure: failure.Fd(), parent: uintptr(os.Getpid())}
	if lifeline != nil {
		c.lifeline = lifeline.Fd()
	}
	if c.path, err = syscall.BytePtrFromString(path); err != nil {
		return 0, err
	}
	args, err := syscall.SlicePtrFromStrings(argv)
	if err != nil {
		return 0, err
	}
	vars, err := syscall.SlicePtrFromStrings(env)
	if err != nil {
		return 0, err
	}
	c.argv, c.env = &args[0], &vars[0]
	ownFileLimit()
	pid, err = forked(func() (uintptr, syscall.Errno) { return forkCommand(&c) })
	if err == nil {
		// The child does the same. One of the two is first, and from here on there is a group to signal.
		_ = syscall.Setpgid(pid, pid)
	}
	return pid, err
}

// startGuardian forks a guardian, which reads from the lifeline.
func startGuardian(lifeline *os.File) (pid int, err error) {
	c := guardianChild{lifeline: lifeline.Fd(), files: 1 << 20}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		c.files = uintptr(min(limit.Cur, 1<<20))
	}
	// Behind the memory of the arguments is that of the environment and the path by which this program
	// was executed, together at most 6 MB. What is elsewhere are no longer the original arguments.
	first, last := unsafe.Pointer(unsafe.StringData(os.Args[0])), uintptr(unsafe.Pointer(executedAs()))
	if at := uintptr(first); at < last && last-at < 6<<20 {
		c.arguments = first
	}
	for _, arg := range os.Args {
		c.room += len(arg) + 1
	}
	return forked(func() (uintptr, syscall.Errno) { return forkGuardian(&c) })
}

// forked forks while no other goroutine is between the making of a descriptor and its close-on-exec flag.
func forked(fork func() (uintptr, syscall.Errno)) (pid int, err error) {
	syscall.ForkLock.Lock()
	child, errno := fork()
	syscall.ForkLock.Unlock()
	if errno != 0 {
		return 0, os.NewSyscallError("fork", errno)
	}
	return int(child), nil
}

// ownFileLimit gives this process back the limit of open files that it was started with, for the command
// to inherit. Go raises it at the start, keeps the old one to itself, and sets it before an Exec; this
// one fails. TestLimitsAreInherited notices if Go does it differently one day.
var ownFileLimit = sync.OnceFunc(func() { _ = syscall.Exec("", nil, nil) })
