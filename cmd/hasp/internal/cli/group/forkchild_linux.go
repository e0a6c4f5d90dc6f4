package group

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two functions here return in this process and go on in the child, to its exec or its end. The
// child has a copy of this process's memory, but of its threads only the one that forked: Go's runtime
// does not work there. Another thread may have held any lock, and no goroutine, allocation, growth of
// the stack, panic or handler of a signal must be needed. So they consist of system calls and fixed
// memory, and all signals are blocked from before the fork; the runtime's handlers (its own preemption
// signal comes at any time) never run in the child.
//
// The child is a fork and not a vfork: it shares no memory with this process and cannot harm it. That
// copies page tables, which takes a tenth of a millisecond.

// commandChild describes the command to the child that becomes it.
type commandChild struct {
	path              *byte
	argv, env         **byte
	lifeline, failure uintptr // lifeline may be none
	parent            uintptr
}

const none = ^uintptr(0)

// forkCommand forks the child that becomes the command. That child takes signals as the command would:
// blocked ones wait until it has their default effect, or ignores them if the command shall.
//
//go:noinline
//go:nosplit
//go:norace
//go:nocheckptr
func forkCommand(c *commandChild) (pid uintptr, errno syscall.Errno) {
	var (
		mask   = blockAll()
		self   uintptr
		number int32
		file   uintptr
	)
	if pid, errno = fork(); pid != 0 || errno != 0 {
		setMask(&mask)
		return pid, errno
	}
	self, _, _ = syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETPGID, 0, 0, 0); errno != 0 {
		goto failed
	}
	// The parent-death signal is for a death from here on. Who is dead already is not the parent.
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0, 0)
	if parent, _, _ := syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); parent != c.parent {
		syscall.RawSyscall(unix.SYS_KILL, self, uintptr(syscall.SIGKILL), 0)
	}
	if c.lifeline != none {
		number = int32(self)
		// If the guardian is dead already, hasp replaces it, and tells the next one the number itself.
		_, _, errno = syscall.RawSyscall(unix.SYS_WRITE, c.lifeline, uintptr(unsafe.Pointer(&number)), 4)
	}
	noHandlers(errno == syscall.EPIPE)
	for file = 0; file < 3; file++ { // hasp's standard files are the command's
		syscall.RawSyscall(unix.SYS_FCNTL, file, unix.F_SETFD, 0)
	}
	setMask(&mask)
	_, _, errno = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(c.argv)), uintptr(unsafe.Pointer(c.env)))
failed:
	number = int32(errno)
	syscall.RawSyscall(unix.SYS_WRITE, c.failure, uintptr(unsafe.Pointer(&number)), 4)
	exit(127)
	return 0, 0 // not reached
}

// guardianChild is for a guardian.
type guardianChild struct {
	lifeline  uintptr
	files     uintptr        // at most so many are open
	arguments unsafe.Pointer // the memory of this process's arguments, or nil
	room      int            // its size
}

// The guardian's names: for ps, which shows the arguments, and for tools that look for programs by name.
// It does not begin with hasp's: a pkill -9 hasp must not reach both.
var (
	guardianTitle = [...]byte{'h', 'a', 's', 'p', ' ', '_', '_', 'g', 'u', 'a', 'r', 'd', '-', 'g', 'r', 'o', 'u', 'p', 0}
	guardianName  = [...]byte{'g', 'u', 'a', 'r', 'd', 'i', 'a', 'n', 0}
	slash         = [...]byte{'/', 0}
)

// forkGuardian forks a guardian: see the type. It has nothing of hasp's open but the lifeline. Until it
// has closed the rest, some microseconds after the fork, the locks of a hasp that has died are held.
//
//go:noinline
//go:nosplit
//go:norace
//go:nocheckptr
func forkGuardian(c *guardianChild) (pid uintptr, errno syscall.Errno) {
	var (
		mask      = blockAll()
		ignore    sigaction
		sig, file uintptr
		group     int32
		number    int32
		n         uintptr
		i         int
	)
	if pid, errno = fork(); pid != 0 || errno != 0 {
		setMask(&mask)
		return pid, errno
	}
	syscall.RawSyscall(unix.SYS_DUP3, c.lifeline, 0, 0)
	if _, _, errno = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 1, 1<<32-1, 0); errno != 0 { // Linux < 5.9
		for file = 1; file < c.files; file++ {
			syscall.RawSyscall(unix.SYS_CLOSE, file, 0, 0)
		}
	}
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	// If it is stopped when hasp dies, the kernel continues it.
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGCONT), 0, 0, 0, 0)
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&guardianName)), 0, 0, 0, 0)
	syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(&slash)), 0, 0)
	for i = 0; c.arguments != nil && (i < len(guardianTitle) || i < c.room); i++ {
		*(*byte)(unsafe.Add(c.arguments, i)) = 0
		if i < len(guardianTitle) { // it may go on where the environment was: ps follows it
			*(*byte)(unsafe.Add(c.arguments, i)) = guardianTitle[i]
		}
	}
	// Only KILL ends it early. A service manager sends TERM to every process of the service; hasp reacts
	// to it, and may give the command a long time.
	ignore[handlerAt()] = sigIgn
	for sig = 1; sig <= lastSignal; sig++ {
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&ignore)), 0, sigsetSize(), 0, 0)
	}
	for {
		n, _, errno = syscall.RawSyscall(unix.SYS_READ, 0, uintptr(unsafe.Pointer(&number)), 4)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 || n != 4 {
			break
		}
		group = number
	}
	// The last writing end has closed without a dismissal: hasp is dead, and the child of a fork is dead
	// or has become the command. 1 would be every process.
	if group > 1 {
		syscall.RawSyscall(unix.SYS_KILL, -uintptr(group), uintptr(syscall.SIGKILL), 0)
	}
	exit(0)
	return 0, 0 // not reached
}

// fork returns 0 in the child.
//
//go:nosplit
//go:norace
func fork() (pid uintptr, errno syscall.Errno) {
	if runtime.GOARCH == "s390x" {
		pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, 0, uintptr(syscall.SIGCHLD), 0, 0, 0, 0)
	} else {
		pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	}
	return pid, errno
}

//go:nosplit
//go:norace
func exit(code uintptr) {
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0)
	}
}

// sigset is the kernel's set of signals, with room for that of any architecture.
type sigset [2]uint64

// blockAll blocks all signals in this thread and returns those that were blocked.
//
//go:nosplit
//go:norace
func blockAll() (old sigset) {
	all := sigset{1<<64 - 1, 1<<64 - 1}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), sigsetSize(), 0, 0)
	return old
}

//go:nosplit
//go:norace
func setMask(mask *sigset) {
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(mask)), 0, sigsetSize(), 0, 0)
}

// sigaction is larger than the kernel's structure, of which only the handler matters here.
type sigaction [16]uintptr

// noHandlers gives every signal that has a handler its default effect, as the exec will: a blocked signal
// must not meet a handler in between. An ignored one stays ignored. forgetPIPE is for a write that has
// caused a SIGPIPE: to ignore it for a moment makes the kernel forget the one that waits. Not otherwise,
// since it may have been sent to the command.
//
//go:nosplit
//go:norace
func noHandlers(forgetPIPE bool) {
	var old, action sigaction
	at := handlerAt()
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&old)), sigsetSize(), 0, 0)
		if errno != 0 || old[at] == sigDfl || old[at] == sigIgn {
			continue
		}
		if sig == uintptr(syscall.SIGPIPE) && forgetPIPE {
			action[at] = sigIgn
			syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&action)), 0, sigsetSize(), 0, 0)
			action[at] = sigDfl
		}
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&action)), 0, sigsetSize(), 0, 0)
	}
}

const (
	sigDfl = 0 // SIG_DFL, in the place of a handler
	sigIgn = 1 // SIG_IGN

	onMIPS     = runtime.GOARCH == "mips" || runtime.GOARCH == "mipsle" || runtime.GOARCH == "mips64" || runtime.GOARCH == "mips64le"
	lastSignal = 64 // Go handles no others, except on MIPS, where these are enough
)

// handlerAt is where in a sigaction the handler is: the first word, and on MIPS behind the flags.
//
//go:nosplit
//go:norace
func handlerAt() uintptr {
	if onMIPS {
		return 1
	}
	return 0
}

//go:nosplit
//go:norace
func sigsetSize() uintptr {
	if onMIPS {
		return 16
	}
	return 8
}
