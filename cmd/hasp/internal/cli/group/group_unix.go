//go:build unix

package group

import (
	"encoding/binary"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Executable is the path by which another process of this program is started.
func Executable() (string, error) { return executable() }

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
	member  int           // one seen at work last; only awaitGone uses this and zombies
	zombies []int         // those seen last

	guardian guardian

	launched chan struct{} // closed once the child has become the command, or is dead
	failure  error         // why it could not be executed; read when launched is closed

	detached bool        // those that have left the group are waited for, too
	empty    atomic.Bool // its number may be another group's

	mu      sync.Mutex
	holding bool             // signals are not handed out yet
	held    []syscall.Signal // for the command, which does not run yet
}

// Start runs path in a new process group with this process's standard files. argv[0] is the
// command's name for itself, as in execve. An event reports that path cannot be executed: this
// process watches a lock and must not wait for a file system. With detached it is gone only when the
// processes have ended that have left it (see SeesDetached).
func Start(path string, argv, env []string, detached bool) (*Group, error) {
	g := &Group{
		detached: detached,
		// Room for the events that can come while the reader is busy; with more the reaper waits.
		events: make(chan Event, 16),
		exited: make(chan struct{}), changed: make(chan struct{}, 1), gone: make(chan struct{}),
		launched: make(chan struct{}),
	}
	g.guardian.died = make(chan struct{}, 1)
	// Before the guardian: if descriptors are few, the command can do without one.
	r, failure, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	unguarded := g.guardian.start(0) // before the command: see startCommand
	started := make(chan error)
	go func() {
		// The parent-death signal is sent when the thread that forked ends, not the process.
		// Without a lock on the thread, it may end at any time and the command would be killed for
		// nothing: so this goroutine keeps it until the group is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := g.fork(path, argv, env, failure)
		started <- err
		if err == nil {
			<-g.gone
		}
	}()
	err = <-started
	failure.Close()
	if err != nil {
		r.Close()
		g.guardian.dismiss()
		return nil, err
	}
	go g.awaitLaunch(r)
	go g.keepGuarded(unguarded)
	go g.awaitGone()
	return g, nil
}

// fork starts the command. failure is where its start fails: see awaitLaunch.
func (g *Group) fork(path string, argv, env []string, failure *os.File) (err error) {
	children.watch(g)
	g.holding = g.guardian.lifeline != nil
	g.id, err = children.start(func() (int, error) {
		return startCommand(path, argv, env, g.guardian.lifeline, failure)
	}, g.tell)
	if err != nil {
		children.forget(g)
	}
	return err
}

// awaitLaunch reads to the end, which comes when the child has become the command or is dead, and
// then passes on the signals that came before. An error is an end, too.
func (g *Group) awaitLaunch(r *os.File) {
	defer close(g.launched)
	defer r.Close()
	number := make([]byte, 4)
	n, _ := io.ReadFull(r, number)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holding = false
	if n == len(number) {
		g.failure = syscall.Errno(binary.NativeEndian.Uint32(number))
		return
	}
	g.handOutLocked()
}

func (g *Group) handOutLocked() {
	for _, sig := range g.held {
		_ = syscall.Kill(-g.id, sig) // an error because it is gone is reported soon, by Gone
	}
	g.held = nil
}

// Signal sends a signal to every process of the group. It must not be called after Gone: another
// process may have the number by then.
//
// A launcher is a Go program for a millisecond, and does not take signals as the
// command would: USR1 would be lost, and QUIT would cause a dump. They are held until the launcher
// has become the command. KILL and STOP, which need no handler, are not held. CONT is sent and
// held, for the TERM before it: between becoming the command and getting the held signals it may
// stop itself.
//
// When the group is empty, the detached processes that are waited for get the signal.
func (g *Group) Signal(sig syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.empty.Load() {
		return g.signalDetached(sig)
	}
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

// tell receives the reaper's reports about the command's own process.
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

// Events reports what happens to the group, until Gone.
func (g *Group) Events() <-chan Event { return g.events }

// awaitGone watches the group until no process is left in it.
//
// Orphans of the group become children of this process where the system allows it (see adopt); then
// the reaper reports each death. The others have a living parent outside of the group, or init
// adopts them: for them awaitGone also polls. The number cannot become another group's meanwhile:
// the kernel gives it to no new process while one is in the group, and awaitGone looks again within
// 100 ms after the last has gone.
func (g *Group) awaitGone() {
	<-g.exited // for a moment the group is empty, and the end is reaped but not reported
	g.await(func() bool { return g.Signal(0) == syscall.ESRCH || !g.working() })
	g.guardian.dismiss()
	g.empty.Store(true)
	if m, left := g.Left(); left {
		g.events <- Event{Kind: Detached, Member: m}
		g.await(func() bool { return g.Signal(0) == syscall.ESRCH })
	}
	children.forget(g)
	close(g.gone)
	g.events <- Event{Kind: Gone}
}

// await looks again when a child has changed, and now and then, until done.
func (g *Group) await(done func() bool) {
	for delay := time.Millisecond; !done(); {
		select {
		case <-g.changed:
		case <-time.After(delay):
			delay = min(2*delay, 100*time.Millisecond)
		}
	}
}
