//go:build unix

package group

import (
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
// ignores the signal, and StopSelf returns at once.
//
// TTIN, since TSTP is caught (for the command's sake) and Go does not give a signal its
// default back once it was. And not STOP, which would stop us where nobody continues us.
func StopSelf() {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	_ = syscall.Kill(0, syscall.SIGTTIN)
	// Another thread may be the one to take the signal, a moment after kill has returned.
	select {
	case <-continued:
	case <-time.After(100 * time.Millisecond):
	}
}

// IsTerminal reports whether f is the controlling terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil
}
