//go:build unix

package group

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group/spawn"
)

// guardian is a second process of this program. It kills the group if hasp dies without having
// cleaned up: by kill -9, by the kernel for lack of memory, by a crash. The parent-death signal
// alone would leave a script's children running, without a lock and beside the next holder.
//
// It reads from a pipe, the lifeline. hasp has the writing end, which the kernel closes when hasp
// dies. It is started before the command (see Group.start) and has its own session, so that neither
// the terminal's signals nor a kill of hasp's process group reaches it, and ignores every signal that
// can be ignored.
//
// hasp never kills it by its number but dismisses it by a byte on the lifeline: it may have died
// long ago, and an unrelated process may have the number, where numbers are few (a PID namespace).
//
// What it cannot do: be there before the kernel has released a lock that dies with this process
// (the file store's). The next holder may have it about a millisecond before the last of the old
// group is dead. The alternative, running the command in a PID namespace, closes that gap, but
// needs privileges and changes what the command sees.
type guardian struct {
	id       int      // of its process; 0: there is none, or it is not needed any more
	lifeline *os.File // nil: none has been started

	missing bool             // Unguarded has been told
	due     <-chan time.Time // when another is to be started
	born    time.Time
	rest    time.Duration
}

// start starts a guardian. It does not inherit the standard files: after hasp's death it must not
// hold a pipe open that another process reads to its end. It writes nothing.
func (k *guardian) start(group int) error {
	k.hangUp()
	k.born = time.Now()
	self, err := Executable()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	attr := &syscall.ProcAttr{Dir: "/", Files: []uintptr{r.Fd(), r.Fd(), r.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}}
	onParentDeath(attr.Sys, syscall.SIGCONT) // one that is stopped goes on then, and kills the group
	if k.id, err = syscall.ForkExec(self, []string{os.Args[0], spawn.Guard, strconv.Itoa(group)}, attr); err != nil {
		k.id = 0
		w.Close()
		return err
	}
	k.lifeline = w
	return nil
}

// dismiss ends the guardian while no other group can have the group's number yet. The byte does not
// block, and fails if the guardian is dead.
func (k *guardian) dismiss() {
	if k.lifeline != nil {
		_, _ = k.lifeline.Write([]byte{0})
	}
	k.hangUp()
	k.id, k.due = 0, nil
}

func (k *guardian) hangUp() {
	if k.lifeline != nil {
		k.lifeline.Close()
		k.lifeline = nil
	}
}

// changed is told of the guardian's changes by run, which does not reap now: the number of a stopped
// guardian is still its own. It must be continued: not every system continues it when hasp dies.
func (k *guardian) changed(status syscall.WaitStatus) {
	if status.Stopped() {
		_ = syscall.Kill(k.id, syscall.SIGCONT)
		return
	}
	k.id = 0
	k.tryAgain()
}

// A guardian that cannot live must not be started as fast as it dies.
const (
	restMost  = 10 * time.Second
	livedWell = 10 * time.Second
)

func (k *guardian) tryAgain() {
	if time.Since(k.born) > livedWell {
		k.rest = 0
	}
	k.due = time.After(k.rest)
	k.rest = min(max(2*k.rest, 10*time.Millisecond), restMost)
}

// noGuardian tells once why there is none. The command runs even so (no more processes allowed, say):
// the parent-death signal still protects it.
func (g *Group) noGuardian(err error) {
	if !g.guardian.missing {
		g.guardian.missing = true
		g.events <- Event{Kind: Unguarded, Err: err}
	}
	g.guardian.tryAgain()
}

// replaceGuardian starts one in the place of one that has died or could not be started.
func (g *Group) replaceGuardian() {
	if err := g.guardian.start(g.id); err != nil {
		g.noGuardian(err)
		return
	}
	g.guardian.missing = false
	g.events <- Event{Kind: Guarded}
}
