//go:build unix

package group

import (
	"os"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group/spawn"
)

// startCommand starts a launcher, which becomes the command: see spawn. Without a lifeline it needs
// no launcher, and may not get one, if this program's own binary could not be started.
//
// On Linux the kernel kills the command when this thread ends. Elsewhere the guardian, which kills
// the whole group, has to be enough.
func startCommand(path string, argv, env []string, lifeline, failure *os.File) (pid int, err error) {
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}}
	onParentDeath(attr.Sys, syscall.SIGKILL)
	if lifeline == nil {
		return syscall.ForkExec(path, argv, attr)
	}
	attr.Files = append(attr.Files, lifeline.Fd(), failure.Fd())
	self, _ := executable() // the guardian has used the same path a moment ago
	return syscall.ForkExec(self, append([]string{os.Args[0], spawn.Launch, path}, argv...), attr)
}

// startGuardian starts a guardian: see spawn. It does not inherit the standard files: after hasp's
// death it must not hold a pipe open that another process reads to its end. It writes nothing.
func startGuardian(lifeline *os.File) (pid int, err error) {
	self, err := executable()
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{lifeline.Fd(), lifeline.Fd(), lifeline.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	}
	onParentDeath(attr.Sys, syscall.SIGCONT) // one that is stopped goes on then, and kills the group
	return syscall.ForkExec(self, []string{os.Args[0], spawn.Guard}, attr)
}
