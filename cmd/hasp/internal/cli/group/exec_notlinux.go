//go:build unix && !linux

package group

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group/spawn"
)

const launchers = true

// startCommand starts a launcher, which becomes the command: see spawn. Without a lifeline it needs no
// launcher, and may not get one, if this program's own binary could not be started.
//
// Here is no parent-death signal: the guardian kills the whole group.
func startCommand(path string, argv, env []string, lifeline, failure *os.File) (pid int, err error) {
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}}
	if lifeline == nil {
		return syscall.ForkExec(path, argv, attr)
	}
	attr.Files = append(attr.Files, lifeline.Fd(), failure.Fd())
	self, _ := executable() // the guardian has used the same path a moment ago
	return syscall.ForkExec(self, append([]string{os.Args[0], spawn.Launch, ignored(), path}, argv...), attr)
}

// startGuardian starts a guardian: see spawn. It does not inherit the standard files: after hasp's death
// it must not hold a pipe open that another process reads to its end. It writes nothing.
func startGuardian(lifeline *os.File) (pid int, err error) {
	self, err := executable()
	if err != nil {
		return 0, err
	}
	return syscall.ForkExec(self, []string{os.Args[0], spawn.Guard}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{lifeline.Fd(), lifeline.Fd(), lifeline.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// ignored are the signals that this process ignores and that the command shall ignore.
func ignored() string {
	var numbers []string
	for n := 1; n < 32; n++ {
		if signal.Ignored(syscall.Signal(n)) {
			numbers = append(numbers, strconv.Itoa(n))
		}
	}
	return strings.Join(numbers, ",")
}
