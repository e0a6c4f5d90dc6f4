//go:build unix

package group

import (
	"io"
	"os"
	"strconv"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group/spawn"
	"golang.org/x/sys/unix"
)

// start starts a launcher, then the guardian of its group, and then has the launcher become the
// command (see spawn). So there is no moment in which the command runs and has no guardian:
//
//   - If this process dies before the guardian has started, the connection closes without the byte to
//     go on, and the launcher ends. On Linux the parent-death signal ends it, too.
//   - If it dies between the guardian's start and the byte, the same happens, and the guardian kills
//     the group, if it is there yet.
//   - If the launcher dies, it is reaped as a command that was killed is. The guardian is dismissed.
//
// Without a launcher (no descriptor is left, or this program's file cannot be executed again) the
// command starts by itself, and the reason is returned as the one why it is unguarded.
//
// On Linux the kernel kills the command when this thread ends. Elsewhere the guardian, which kills
// the whole group, has to be enough.
func (g *Group) start(path string, argv, env []string) (unguarded, err error) {
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}}
	onParentDeath(attr.Sys, syscall.SIGKILL)
	launcher, unguarded := g.startLauncher(path, argv, attr)
	if unguarded != nil {
		g.id, err = syscall.ForkExec(path, argv, attr)
		if err == syscall.ENOEXEC && spawn.IsScript(path) {
			g.id, err = syscall.ForkExec(spawn.Shell, spawn.ByShell(path, argv), attr)
		}
		return unguarded, err
	}
	g.launching = true
	unguarded = g.guardian.start(g.id)
	_, _ = launcher.Write([]byte{1}) // it fails if the launcher is dead, which reap finds
	go g.awaitCommand(launcher)
	return unguarded, nil
}

// startLauncher returns this process's end of the connection to the launcher. The launcher's end is
// the only descriptor that it inherits and hasp was not started with. Those keep their numbers, which
// are the command's: a log that the shell has opened, make's jobserver. What this process has opened
// is close-on-exec.
func (g *Group) startLauncher(path string, argv []string, attr *syscall.ProcAttr) (*os.File, error) {
	self, err := Executable()
	if err != nil {
		return nil, err
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(ends[0]) // no other goroutine starts a process meanwhile: see Start
	g.id, err = syscall.ForkExec(self, append([]string{os.Args[0], spawn.Launch, strconv.Itoa(ends[1]), path}, argv...), attr)
	_ = syscall.Close(ends[1])
	ours := os.NewFile(uintptr(ends[0]), "launcher")
	if err != nil {
		ours.Close()
		return nil, err
	}
	return ours, nil
}

// awaitCommand reads to the end, which comes when the launcher has become the command, or is dead.
// Then it has written why, if it could not be executed.
func (g *Group) awaitCommand(launcher *os.File) {
	defer launcher.Close()
	text, _ := io.ReadAll(launcher) // an error is an end, too
	if number, err := strconv.Atoi(string(text)); err == nil {
		g.launched <- syscall.Errno(number)
		return
	}
	g.launched <- nil
}

// becomesCommand passes on the signals that came before.
func (g *Group) becomesCommand(failure error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failure, g.launching = failure, false
	for _, sig := range g.held {
		_ = syscall.Kill(-g.id, sig) // an error because it is gone is reported soon, by Gone
	}
	g.held = nil
}
