//go:build unix && !linux

package group

import "syscall"

// working: no portable call tells a zombie from a running process.
func (g *Group) working() bool { return true }

// OutOfReach is not known here.
func (g *Group) OutOfReach() []Member { return nil }

// Left is not known here.
func (g *Group) Left() (Member, bool) { return Member{}, false }

// SeesDetached is false: orphans become process 1's.
func SeesDetached() bool { return false }

func childNumbers() []int { return nil }

func (g *Group) signalDetached(syscall.Signal) error { return syscall.ESRCH }
