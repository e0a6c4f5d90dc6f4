//go:build unix

package group

import (
	"os"
	"strconv"
	"syscall"
)

// A guardian is a second process of this program that kills the group if we die without
// having cleaned up: by kill -9, by the kernel for lack of memory, by a crash. The
// parent-death signal alone would leave a script's children at work, without a lock and
// beside the next holder.
//
// It needs no protocol: it reads from a pipe whose only writing end is ours, and the
// kernel closes that with us. It has its own session, so that neither the terminal's
// signals nor a kill of our process group reaches it.
//
// What it cannot do: be there before the kernel has released a lock that dies with this
// process (the file store's). The next holder may have it about a millisecond before the
// last of the old group is dead. The road not taken: holding the command in a PID
// namespace closes that gap, but needs privileges and changes what the command sees.

// guardianArg makes Main a guardian. It is no verb: people have no use for it.
const guardianArg = "__guard-group"

// guard starts the guardian of g. Without one (no more processes allowed, say) the
// parent-death signal still stands, so the command is not refused its run.
func (g *Group) guard() {
	self, err := executable()
	if err != nil {
		return
	}
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return
	}
	defer null.Close()
	// Its standard files are not ours: after our death it must not hold a pipe open that
	// somebody reads to its end.
	pid, err := syscall.ForkExec(self, []string{os.Args[0], guardianArg, strconv.Itoa(g.id)}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{r.Fd(), null.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		w.Close()
		return
	}
	g.guardian, g.lifeline = pid, w
}

// dismiss ends the guardian while the group's number cannot be another's yet. KILL, since
// closing the pipe is its signal to strike.
func (g *Group) dismiss() {
	if g.guardian == 0 {
		return
	}
	_ = syscall.Kill(g.guardian, syscall.SIGKILL) // the reaper takes it in
	g.lifeline.Close()
}

// Guardian runs the guardian and returns true if args (without the program's name) ask
// for it.
func Guardian(args []string) bool {
	if len(args) != 2 || args[0] != guardianArg {
		return false
	}
	id, err := strconv.Atoi(args[1])
	if err != nil || id <= 1 {
		return true
	}
	for {
		// Nobody writes; an interrupted read is tried again.
		if n, err := syscall.Read(0, make([]byte, 1)); err != syscall.EINTR && n <= 0 {
			break
		}
	}
	_ = syscall.Kill(-id, syscall.SIGKILL)
	return true
}
