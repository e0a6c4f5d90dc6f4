package group

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adopt makes orphaned descendants our children instead of init's, so that this process learns of
// their end. Where that is refused, awaitGone finds out by polling, and nothing is known of detached processes.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// executable is this program: the kernel's link, which is right even after an upgrade of the file,
// or without /proc (in a chroot) the path that it was executed by. The alternative, looking for
// argv[0] along PATH, may find another program.
func executable() (string, error) {
	const own = "/proc/self/exe"
	err := unix.Access(own, unix.X_OK)
	if err == nil {
		return own, nil
	}
	if path := executedAs(); path != nil {
		return filepath.Abs(unix.BytePtrToString(path))
	}
	return "", fmt.Errorf("%s: %w", own, err)
}

// executedAs is the path by which this program was executed, from the kernel; nil if it is not
// known.
func executedAs() *byte {
	const path = 31 // AT_EXECFN
	vector, _ := unix.Auxv()
	for _, entry := range vector {
		if entry[0] == path {
			return *(**byte)(unsafe.Pointer(&entry[1]))
		}
	}
	return nil
}

// onParentDeath has the process get a signal when the thread that starts it ends.
func onParentDeath(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// KeepIgnored has Ctrl-Z stay ignored, for hasp and for the command, if the parent process ignored
// it. Go sees to HUP and INT, and does not touch the others of job control. What became of the rest
// is not known: Go takes them over before any code of ours runs, and the command has their default
// effect.
func KeepIgnored() {
	text, _ := os.ReadFile("/proc/self/status")
	_, mask, _ := strings.Cut(string(text), "\nSigIgn:")
	mask, _, _ = strings.Cut(strings.TrimSpace(mask), "\n")
	if set, err := strconv.ParseUint(mask, 16, 64); err == nil && set&(1<<(syscall.SIGTSTP-1)) != 0 {
		signal.Ignore(syscall.SIGTSTP)
	}
}
