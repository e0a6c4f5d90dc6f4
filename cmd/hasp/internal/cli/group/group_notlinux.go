//go:build unix && !linux

package group

import (
	"os"
	"os/signal"
	"syscall"
)

// adopt does nothing: here a process cannot adopt orphans, and gone polls.
func adopt() {}

// Executable is the path by which another process of this program is started.
func Executable() (string, error) { return os.Executable() }

// onParentDeath does nothing: the guardian alone sees to a group whose hasp is dead.
func onParentDeath(*syscall.SysProcAttr, syscall.Signal) {}

// holdingBackTTOU ignores the signal from here on. Here a thread's mask cannot be set without C; so
// the commands that elect starts in later terms ignore it, too.
func holdingBackTTOU(do func()) {
	signal.Ignore(syscall.SIGTTOU)
	do()
}

// DespiteTOSTOP only runs do: a few lines of output do not justify the price above.
func DespiteTOSTOP(do func()) { do() }

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
