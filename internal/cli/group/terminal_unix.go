//go:build unix

package group

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is the controlling terminal. nil means there is none; its methods then say so.
//
// A command in its own group is in the terminal's background, and reading there stops it
// (SIGTTIN). The terminal is lent to it at that moment and not before. Whoever never reads
// from the terminal (make, rsync, a script) never gets it, so Ctrl-C reaches this process
// and everybody else in its job, as it would without us, and can be counted: twice kills.
// Whoever does read (an editor, a shell, a password prompt) gets Ctrl-C for itself and
// must not be killed for it. The road not taken, lending it from the start, would also
// take it from a pager in the same pipeline. The price: a program that asks whether it is
// in the foreground before it draws a progress bar is told no.
type Terminal struct {
	tty *os.File
}

// OpenTerminal returns the controlling terminal, or nil.
func OpenTerminal() *Terminal {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &Terminal{tty}
}

// Close gives up the descriptor.
func (t *Terminal) Close() {
	if t != nil {
		t.tty.Close()
	}
}

// Lend makes g the terminal's foreground group and continues it, if the foreground is ours
// to give.
func (t *Terminal) Lend(g *Group) bool {
	if t == nil || t.foreground() != syscall.Getpgrp() || !t.set(g.id) {
		return false
	}
	_ = g.Signal(syscall.SIGCONT)
	return true
}

// TakeBack makes our own group the foreground again if g was, and reports that.
func (t *Terminal) TakeBack(g *Group) bool {
	return t != nil && t.foreground() == g.id && t.set(syscall.Getpgrp())
}

func (t *Terminal) foreground() int {
	id, err := unix.IoctlGetInt(int(t.tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return id
}

// set changes the foreground group. From the background that is answered with SIGTTOU,
// which stops us, unless it is held back.
func (t *Terminal) set(id int) (ok bool) {
	holdingBackTTOU(func() {
		ok = unix.IoctlSetPointerInt(int(t.tty.Fd()), unix.TIOCSPGRP, id) == nil
	})
	return ok
}

// StopSelf stops this process and the rest of its job, as Ctrl-Z would, and returns when
// they are continued. Where nobody does job control (an orphaned process group) the kernel
// ignores the signal, and StopSelf returns false soon. So it may otherwise: see Orphaned.
//
// TTIN, since TSTP is caught (for the command's sake) and Go does not give a signal its
// default back once it was. And not STOP, which would stop us where nobody continues us.
func StopSelf() (continued bool) {
	conts := make(chan os.Signal, 1)
	signal.Notify(conts, syscall.SIGCONT)
	defer signal.Stop(conts)
	_ = syscall.Kill(0, syscall.SIGTTIN)
	// Another thread may be the one to take the signal, a moment after kill has returned.
	select {
	case <-conts:
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

// Orphaned reports whether our group is one that nobody can give this terminal: its shell
// has forgotten it, as in (hasp run ... &).
//
// The kernel is asked by a request that it refuses in any case, to make group -1 the
// foreground. Where that may be asked, the answer is EINVAL; from an orphaned group's
// background it may not, and the answer is another. From the background of a job it stops
// us, which is what the caller was about to do.
func (t *Terminal) Orphaned() bool {
	if t == nil {
		return false
	}
	err := unix.IoctlSetPointerInt(int(t.tty.Fd()), unix.TIOCSPGRP, -1)
	return errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EIO)
}

// Leave leaves the terminal's session. g is an orphaned group then, too, since its parent is
// in another session, and what it reads from the terminal fails (EIO) as it does for every
// orphaned group: it is not stopped any more for somebody to continue it.
//
// The first of a group may not leave, so it joins g for that moment. It reports failure if
// others are left behind in the group that it was the first of.
func (t *Terminal) Leave(g *Group) bool {
	if _, err := unix.Setsid(); err == nil {
		return true
	}
	own := syscall.Getpgrp()
	if syscall.Setpgid(0, g.id) != nil {
		return false
	}
	if _, err := unix.Setsid(); err == nil {
		return true
	}
	_ = syscall.Setpgid(0, own) // the others keep it alive
	return false
}

// IsTerminal reports whether f is the controlling terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil
}
