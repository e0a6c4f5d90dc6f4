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

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group/spawn"
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

	launched chan struct{} // closed once the launcher has become the command, or is dead
	failure  error         // why it could not be executed; read when launched is closed

	mu      sync.Mutex
	holding bool             // signals are not handed out yet
	held    []syscall.Signal // for the command, which does not run yet
}

// Start runs path in a new process group with this process's standard files. argv[0] is the
// command's name for itself, as in execve. An event reports that path cannot be executed: this
// process watches a lock and must not wait for a file system.
func Start(path string, argv, env []string) (*Group, error) {
	g := &Group{
		// Room for the events that can come while the reader is busy; with more the reaper waits.
		events: make(chan Event, 16),
		exited: make(chan struct{}), changed: make(chan struct{}, 1), gone: make(chan struct{}),
		launched: make(chan struct{}),
	}
	g.guardian.died = make(chan struct{}, 1)
	unguarded := g.guardian.start(0) // before the command: see spawn
	started := make(chan error)
	go func() {
		// The parent-death signal is sent when the thread that forked ends, not the process.
		// Without a lock on the thread, it may end at any time and the command would be killed for
		// nothing: so this goroutine keeps it until the group is gone.
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

// fork starts the command by a launcher. Without a guardian it needs no launcher, and may not get
// one, if this program's own binary could not be started.
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
	self, _ := executable() // the guardian has used the same path a moment ago
	g.holding = true
	g.id, err = children.fork(self, append([]string{os.Args[0], spawn.Launch, ignored(), path}, argv...), attr, g.tell)
	if err != nil {
		r.Close()
		return err
	}
	go g.awaitLaunch(r)
	return nil
}

// ignored are the signals that this process ignores and that the command shall ignore.
func ignored() string {
	var numbers []string
	for n := 1; n < 32; n++ {
		if signal.Ignored(syscall.Signal(n)) {
			numbers = append(numbers, strconv.Itoa(n))
		}
	}
	return strings.Join(numbers, ",")
}

// awaitLaunch reads to the end, which comes when the launcher has become the command or is dead,
// and then passes on the signals that came before.
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
		_ = syscall.Kill(-g.id, sig) // an error because it is gone is reported soon, by Gone
	}
	g.held = nil
}

// Signal sends a signal to every process of the group. It must not be called after Gone: another
// process may have the number by then.
//
// A launcher is a Go program for a millisecond, and does not take signals as the command would:
// USR1 would be lost, and QUIT would cause a dump. They are held until the launcher has become the
// command. KILL and STOP, which need no handler, are not held. CONT is sent and held, for the TERM
// before it: between becoming the command and getting the held signals it may stop itself.
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
