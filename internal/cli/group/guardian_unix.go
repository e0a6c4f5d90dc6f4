//go:build unix

package group

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hasplock/hasp/internal/cli/group/spawn"
)

// guardian is a second process of this program that kills the group if we die without
// having cleaned up: by kill -9, by the kernel for lack of memory, by a crash. The
// parent-death signal alone would leave a script's children at work, without a lock and
// beside the next holder.
//
// It reads from a pipe, the lifeline, whose writing end is ours, and which the kernel closes
// with us. It is started before the command and told the group's number by the launcher,
// which becomes the command (see spawn): there is no moment in which the command is at work
// and unguarded. It has its own session, so that neither the terminal's signals nor a kill of
// our process group reaches it, and ignores every signal that can be ignored.
//
// Nobody kills it by its number. It is dismissed by a word on the lifeline: it may have died
// long ago, and the number be an innocent process's, where numbers are few (a PID namespace).
//
// What it cannot do: be there before the kernel has released a lock that dies with this
// process (the file store's). The next holder may have it about a millisecond before the
// last of the old group is dead. The road not taken: holding the command in a PID
// namespace closes that gap, but needs privileges and changes what the command sees.
type guardian struct {
	died chan struct{} // buffered by one: a death that is known about stands for all

	mu        sync.Mutex
	lifeline  *os.File // nil: there is none
	dismissed bool
}

var errDismissed = errors.New("dismissed")

// start starts one for group id. 0 is for a group that a launcher will name.
func (k *guardian) start(id int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dismissed {
		return errDismissed
	}
	k.hangUp()
	self, err := executable()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	// Its standard files are not ours: after our death it must not hold a pipe open that
	// somebody reads to its end. It has nothing to say.
	_, err = children.fork(self, []string{os.Args[0], spawn.Guard}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{r.Fd(), r.Fd(), r.Fd()}, Sys: guardianAttr(),
	}, k.tell)
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

// tell is what the reaper has to say of it. The reaper's goroutine is here and not reaping,
// so the number of a stopped one is still its own. Stopped it would be of no use to us: not
// every system continues it for us when we die.
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

// dismiss ends the guardian, while the group's number cannot be another's yet.
func (k *guardian) dismiss() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dismissed = true
	if k.lifeline != nil {
		k.write(spawn.Dismissed)
	}
	k.hangUp()
}

// write says a number on the lifeline. It fails if the guardian is dead, of which the reaper
// tells. It does not block: a few of them are all that is ever in the pipe.
func (k *guardian) write(number int) {
	_, _ = k.lifeline.Write(append(strconv.AppendInt(nil, int64(number), 10), '\n'))
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
// command is not refused its run for lack of one (no more processes allowed, say): the
// parent-death signal still stands. unguarded is why there is none to begin with.
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

// inform is for what need not be told any more once the group is gone.
func (g *Group) inform(e Event) {
	select {
	case g.events <- e:
	case <-g.gone:
	}
}
