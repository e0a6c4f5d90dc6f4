//go:build unix

package group

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

// guardian is a second process of this program. It kills the group if hasp dies without having
// cleaned up: by kill -9, by the kernel for lack of memory, by a crash. The parent-death signal
// alone would leave a script's children running, without a lock and beside the next holder.
//
// It reads from a pipe, the lifeline. hasp has the writing end, which the kernel closes when hasp
// dies. It is started before the command and told the group's number by the process that becomes
// the command (see startCommand): there is no moment in which the command runs unguarded. It has
// its own session, so that neither the terminal's signals nor a kill of hasp's process group
// reaches it, and ignores every signal that can be ignored.
//
// hasp never kills it by its number but dismisses it by a message on the lifeline: it may have died
// long ago, and an unrelated process may have the number, where numbers are few (a PID namespace).
//
// What it cannot do: be there before the kernel has released a lock that dies with this process
// (the file store's). The next holder may have it about a millisecond before the last of the old
// group is dead. The alternative, running the command in a PID namespace, closes that gap, but
// needs privileges and changes what the command sees.
type guardian struct {
	died chan struct{} // buffered by one: one death that is noticed stands for all

	mu        sync.Mutex
	lifeline  *os.File // nil: there is none
	dismissed bool
}

var errDismissed = errors.New("dismissed")

// dismissed on the lifeline, in the place of a group, tells the guardian that there is nothing to
// guard any more.
const dismissed = 0

// start starts a guardian for group id; 0 if the command's start will name the group.
func (k *guardian) start(id int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dismissed {
		return errDismissed
	}
	k.hangUp()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = children.start(func() (int, error) { return startGuardian(r) }, k.tell)
	if err != nil {
		w.Close()
		return err
	}
	k.lifeline = w
	if id != 0 {
		k.write(id)
	}
	return nil
}

// tell receives the reaper's reports about the guardian. The reaper's goroutine runs it and so does
// not reap now, hence the number of a stopped guardian is still its own. A stopped guardian must be
// continued: not every system continues it when hasp dies.
func (k *guardian) tell(pid int, ws syscall.WaitStatus) {
	if ws.Stopped() {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		return
	}
	select {
	case k.died <- struct{}{}:
	default:
	}
}

// dismiss ends the guardian while no other group can have the group's number yet.
func (k *guardian) dismiss() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dismissed = true
	if k.lifeline != nil {
		k.write(dismissed)
	}
	k.hangUp()
}

// write sends a number on the lifeline, in four bytes. It fails if the guardian is dead, which the
// reaper reports. It does not block: the pipe never holds more than a few numbers.
func (k *guardian) write(number int) {
	_, _ = k.lifeline.Write(binary.NativeEndian.AppendUint32(nil, uint32(number)))
}

func (k *guardian) hangUp() {
	if k.lifeline != nil {
		k.lifeline.Close()
		k.lifeline = nil
	}
}

// A guardian that cannot live must not be started as fast as it dies.
const (
	restMost  = 10 * time.Second
	livedWell = 10 * time.Second
)

// keepGuarded replaces the group's guardian whenever it has died or could not be started. The
// command runs even without a guardian (no more processes allowed, say): the parent-death signal
// still protects it. unguarded is the reason why there is none at the start.
func (g *Group) keepGuarded(unguarded error) {
	err, told := unguarded, false
	for rest, born := time.Duration(0), time.Now(); ; {
		if err == nil {
			select {
			case <-g.guardian.died:
			case <-g.gone:
				return
			}
			if time.Since(born) > livedWell {
				rest = 0
			}
		} else if !told {
			told = true
			g.inform(Event{Kind: Unguarded, Err: err})
		}
		select {
		case <-time.After(rest):
		case <-g.gone:
			return
		}
		rest, born = min(max(2*rest, 10*time.Millisecond), restMost), time.Now()
		if err = g.guardian.start(g.id); errors.Is(err, errDismissed) {
			return
		}
		if err == nil {
			told = false
			g.inform(Event{Kind: Guarded})
		}
	}
}

// inform sends an event that is no longer needed once the group is gone.
func (g *Group) inform(e Event) {
	select {
	case g.events <- e:
	case <-g.gone:
	}
}
