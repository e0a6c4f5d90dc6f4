//go:build unix

package group

import (
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hasplock/hasp/internal/cli/group/spawn"
)

// Supported says whether commands can be run in groups.
const Supported = true

// Group is a running command and what it has started. Its methods may be called from any
// goroutine; Events has one reader.
type Group struct {
	id      int // of the group, and of the command's process
	events  chan Event
	exited  chan struct{} // closed once Exited or Failed has been told
	changed chan struct{} // some child was reaped: look again whether the group is gone
	gone    chan struct{} // closed before Gone is told
	member  int           // one seen at work last; this and zombies belong to awaitGone
	zombies []int         // those seen last

	guardian guardian

	launched chan struct{} // closed once the launcher has become the command, or is dead
	failure  error         // why it could not be executed; read when launched is closed

	mu      sync.Mutex
	holding bool             // signals are not handed out yet
	held    []syscall.Signal // for the command, which is not there yet
}

// Start runs path in a new process group with this process's standard files. argv[0] is
// the command's name for itself, as in execve. That path cannot be executed is told by an
// event: what this process has to watch must not wait for a file system.
func Start(path string, argv, env []string) (*Group, error) {
	g := &Group{
		// Room for all that can come while the reader is busy; beyond that the reaper waits.
		events: make(chan Event, 16),
		exited: make(chan struct{}), changed: make(chan struct{}, 1), gone: make(chan struct{}),
		launched: make(chan struct{}),
	}
	g.guardian.died = make(chan struct{}, 1)
	unguarded := g.guardian.start(0) // before the command: see spawn
	started := make(chan error)
	go func() {
		// The parent-death signal is sent when the thread that forked ends, not the
		// process. Left to the scheduler, the thread may end at any time and the command
		// be killed for nothing: so this goroutine keeps it until the group is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := g.fork(path, argv, env)
		started <- err
		if err == nil {
			<-g.gone
		}
	}()
	if err := <-started; err != nil {
		g.guardian.dismiss()
		return nil, err
	}
	go g.keepGuarded(unguarded)
	go g.awaitGone()
	return g, nil
}

// fork starts the command, by a launcher. Without a guardian it needs none, and may not have
// one, if what could not be started is this program's own binary.
func (g *Group) fork(path string, argv, env []string) (err error) {
	children.watch(g)
	defer func() {
		if err != nil {
			children.forget(g)
		}
	}()
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: commandAttr()}
	lifeline := g.guardian.lifeline
	if lifeline == nil {
		close(g.launched)
		g.id, err = children.fork(path, argv, attr, g.tell)
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	attr.Files = append(attr.Files, lifeline.Fd(), w.Fd())
	self, _ := executable() // as of the guardian, a moment ago
	g.holding = true
	g.id, err = children.fork(self, append([]string{os.Args[0], spawn.Launch, ignored(), path}, argv...), attr, g.tell)
	if err != nil {
		r.Close()
		return err
	}
	go g.awaitLaunch(r)
	return nil
}

// ignored are the signals that this process ignores and the command is to.
func ignored() string {
	var numbers []string
	for n := 1; n < 32; n++ {
		if signal.Ignored(syscall.Signal(n)) {
			numbers = append(numbers, strconv.Itoa(n))
		}
	}
	return strings.Join(numbers, ",")
}

// awaitLaunch reads to the end, which comes when the launcher has become the command or is
// dead, and hands out the signals that came before.
func (g *Group) awaitLaunch(r *os.File) {
	defer close(g.launched)
	defer r.Close()
	text := make([]byte, 16)
	n, _ := r.Read(text) // an error is an end, too
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holding = false
	if errno, err := strconv.Atoi(string(text[:n])); err == nil {
		g.failure = syscall.Errno(errno)
		return
	}
	g.handOutLocked()
}

func (g *Group) handOutLocked() {
	for _, sig := range g.held {
		_ = syscall.Kill(-g.id, sig) // that it is gone by now is told soon
	}
	g.held = nil
}

// Signal sends a signal to every process of the group. It must not be called after Gone:
// the number may be somebody else's by then.
//
// A launcher, which is a Go program for a millisecond, does not take signals as the command
// would: USR1 would be lost and QUIT be answered with a dump. They are held until it is the
// command. Those of which nobody is asked are not. CONT is sent and held, for the sake of the TERM
// before it: between becoming the command and being sent what was held it may stop itself.
func (g *Group) Signal(sig syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch sig {
	case 0, syscall.SIGKILL, syscall.SIGSTOP:
	case syscall.SIGCONT:
		if len(g.held) > 0 {
			g.held = append(g.held, sig)
		}
	default:
		if g.holding {
			g.held = append(g.held, sig)
			return nil
		}
	}
	return syscall.Kill(-g.id, sig)
}

// tell is what the reaper has to say of the command's own process.
func (g *Group) tell(_ int, ws syscall.WaitStatus) {
	if ws.Stopped() {
		g.events <- Event{Kind: Stopped, Signal: ws.StopSignal()}
		return
	}
	<-g.launched // its end of the pipe has closed with it
	switch {
	case g.failure != nil:
		g.events <- Event{Kind: Failed, Err: g.failure}
	case ws.Signaled():
		g.events <- Event{Kind: Exited, Status: Status{Signal: ws.Signal()}}
	default:
		g.events <- Event{Kind: Exited, Status: Status{Code: ws.ExitStatus()}}
	}
	close(g.exited)
}

// Events tells what happens to the group, until Gone.
func (g *Group) Events() <-chan Event { return g.events }

// awaitGone watches the group until nobody is in it.
//
// Orphans of the group become our children where the system lets us adopt them (see
// adopt), and each death is then told by the reaper. The others have a living parent
// outside of the group, or are adopted by init: for their sake we also look from time to
// time. The number cannot be another's group meanwhile: the kernel gives it to no new
// process as long as one is in the group, and we look again within 100 ms after the last.
func (g *Group) awaitGone() {
	<-g.exited // it has been reaped, but not told, for a moment in which the group is empty
	for delay := time.Millisecond; g.Signal(0) != syscall.ESRCH && g.working(); {
		select {
		case <-g.changed:
		case <-time.After(delay):
			delay = min(2*delay, 100*time.Millisecond)
		}
	}
	g.guardian.dismiss()
	children.forget(g)
	close(g.gone)
	g.events <- Event{Kind: Gone}
}
