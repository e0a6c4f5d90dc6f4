package bound

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// PidfdOpen is a variable for tests: an old kernel has none.
var PidfdOpen = unix.PidfdOpen

// To finds a process by its number. The process cannot be mistaken for another one from then
// on. The start that is read is that of the process behind the pidfd if that still lives then.
func To(pid int) (*Process, error) {
	gone := fmt.Errorf("there is no process %d", pid)
	fd, err := PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, gone
	}
	f, _ := family(pid)
	b := &Process{PID: pid, Start: f.start}
	if err != nil {
		return b, nil // an old kernel, or one that forbids it: see Ended
	}
	b.File = os.NewFile(uintptr(fd), "pidfd")
	if errors.Is(b.Signal(0), unix.ESRCH) {
		b.File.Close()
		return nil, gone
	}
	return b, nil
}

// ToCaller finds the shell that has started this process. A subshell, as $(...) makes one, is
// not meant: it ends with the substitution. It is known by its flag that it was forked and has
// executed nothing since.
//
// The number of a parent that has ended could be another process's when the pidfd is opened: then
// this process has another parent by now, and a second look finds that out.
func ToCaller() (*Process, error) {
	for {
		pid, err := caller()
		if err != nil {
			return nil, err
		}
		b, err := To(pid)
		if again, err := caller(); err != nil || again != pid {
			continue
		}
		return b, err
	}
}

func caller() (int, error) {
	pid := os.Getppid()
	for {
		if pid == 0 {
			return 0, errors.New("the calling shell is not visible from here (another PID namespace); name a process with --pid")
		}
		f, err := family(pid)
		if err != nil || !f.forked || f.parent == 0 { // without /proc the parent is the best guess
			return pid, nil
		}
		pid = f.parent
	}
}

// forkedNoExec is the kernel's PF_FORKNOEXEC.
const forkedNoExec = 0x40

// family reads what /proc tells of a process.
func family(pid int) (f relation, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return f, err
	}
	// Before the last ")" is the program's name, which may contain anything.
	begin, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[end+1:]))
	if begin < 0 || end < begin || len(fields) < 20 {
		return f, errors.New("unexpected content")
	}
	f.name = strings.ToValidUTF8(string(text[begin+1:end]), "?")
	if f.parent, err = strconv.Atoi(fields[1]); err != nil {
		return f, err
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	f.forked, f.start = flags&forkedNoExec != 0, fields[19]
	return f, err
}

// awaitExit waits for the end of the process. false: the system does not tell.
func awaitExit(f *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		if err == nil {
			return fds[0].Revents&unix.POLLIN != 0
		}
		if !errors.Is(err, unix.EINTR) {
			return false
		}
	}
}

func signalFile(f *os.File, sig syscall.Signal) error {
	return unix.PidfdSendSignal(int(f.Fd()), sig, nil, 0)
}

// contained reports whether process 1 is not that of the machine: the first PID namespace has a
// number that the kernel fixes.
func contained() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns != "pid:[4026531836]"
}
