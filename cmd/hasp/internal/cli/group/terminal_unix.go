//go:build unix

package group

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Terminal is the controlling terminal. nil means there is none; its methods work on nil and say
// so.
//
// A command in its own group is in the terminal's background, and reading there stops it (SIGTTIN).
// The terminal is lent to it at that moment and not before. A command that never reads from the
// terminal (make, rsync, a script) never gets it, so Ctrl-C reaches this process and all others in
// its job, as it would without hasp, and can be counted: twice kills. A command that does read (an
// editor, a shell, a password prompt) gets Ctrl-C for itself and must not be killed for it. The
// alternative, lending it from the start, would also take it from a pager in the same pipeline. The
// price: a program that asks whether it is in the foreground before it draws a progress bar gets
// the answer no.
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

// Lend makes g the terminal's foreground group and continues it, if this process's group has the
// foreground.
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

// set changes the foreground group. From the background that raises SIGTTOU, which stops this
// process unless it is held back.
func (t *Terminal) set(id int) (ok bool) {
	holdingBackTTOU(func() {
		ok = unix.IoctlSetPointerInt(int(t.tty.Fd()), unix.TIOCSPGRP, id) == nil
	})
	return ok
}

// Orphaned reports whether no process can give this terminal to our group: its shell has forgotten
// it, as in (hasp run ... &).
//
// It makes a request that the kernel always refuses, to make group -1 the foreground. If the caller
// may ask, the answer is EINVAL; from an orphaned group's background it may not, and the answer is
// another. From the background of a job the request stops this process, which the caller was about
// to do anyway.
func (t *Terminal) Orphaned() bool {
	if t == nil {
		return false
	}
	err := unix.IoctlSetPointerInt(int(t.tty.Fd()), unix.TIOCSPGRP, -1)
	return errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EIO)
}

// Leave leaves the terminal's session. g is an orphaned group then, too, since its parent is in
// another session, and what it reads from the terminal fails (EIO) as it does for every orphaned
// group: it is no longer stopped to wait for a continue.
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
