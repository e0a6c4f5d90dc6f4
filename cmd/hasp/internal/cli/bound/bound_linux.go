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
// on.
func To(pid int) (*Process, error) {
	fd, err := PidfdOpen(pid, 0)
	switch {
	case err == nil:
		return &Process{pid, os.NewFile(uintptr(fd), "pidfd")}, nil
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return nil, fmt.Errorf("there is no process %d", pid)
	}
	return &Process{PID: pid}, nil // an old kernel, or one that forbids it: see Ended
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
		parent, forked, err := family(pid)
		if err != nil || !forked || parent == 0 { // without /proc the parent is the best guess
			return pid, nil
		}
		pid = parent
	}
}

// forkedNoExec is the kernel's PF_FORKNOEXEC.
const forkedNoExec = 0x40

// family reads the parent of a process, and whether it is a fork of it that has executed nothing.
func family(pid int) (parent int, forked bool, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false, err
	}
	// Before the last ")" is the program's name, which may contain anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 7 {
		return 0, false, errors.New("unexpected content")
	}
	parent, err = strconv.Atoi(fields[1])
	if err != nil {
		return 0, false, err
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return parent, flags&forkedNoExec != 0, err
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
