//go:build unix

package group

import (
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Supported says whether commands can be run in groups.
const Supported = true

// Group is a running command and what it has started. Its methods may be called from any
// goroutine; Events has one reader.
//
// One goroutine (run) starts the command, reaps, watches the guardian and tells the events, in one
// order: nothing of that needs a lock. The lock is for the other goroutines, which send signals.
type Group struct {
	id       int // of the group, and of the command's process
	detached bool
	events   chan Event
	launched chan error // nil: the launcher has become the command; otherwise why it could not
	failure  error      // the latter

	guardian guardian
	exited   bool             // Exited or Failed has been told
	told     bool             // Detached has been told
	again    <-chan time.Time // when to look again whether the group is gone
	delay    time.Duration
	member   int   // one seen at work last
	zombies  []int // those seen last

	// While mu is held no child is reaped, and the number of a child is still its own. The alternative,
	// a wait that blocks without mu, leaves a moment after it in which the number may be taken anew.
	mu        sync.Mutex
	others    map[int]bool     // children of this process that were there before the group
	launching bool             // signals are not handed out yet
	held      []syscall.Signal // for the command, which does not run yet
	empty     bool             // the group's number may be another group's
}

// Start runs path in a new process group with this process's standard files. argv[0] is the
// command's name for itself, as in execve. An event reports that path cannot be executed: this
// process watches a lock and must not wait for a file system. With detached it is gone only when the
// processes have ended that have left it (see SeesDetached).
//
// A process has one group at a time, and starts no other child meanwhile: it reaps every child, since
// it does not know the numbers of the orphans that it adopts. The Wait of os/exec would find its own
// child reaped. After the group's end the system reaps.
func Start(path string, argv, env []string, detached bool) (*Group, error) {
	// There is room for the events that can come while the reader is busy; with more run waits.
	g := &Group{detached: detached, events: make(chan Event, 16), launched: make(chan error, 1), others: map[int]bool{}}
	started := make(chan error)
	go g.run(path, argv, env, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return g, nil
}

// run keeps its thread: the parent-death signal is sent when the thread that forked ends, not the
// process, and another thread may end at any time.
func (g *Group) run(path string, argv, env []string, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	adopt()
	for _, pid := range childNumbers() {
		g.others[pid] = true // of the program that this process was before its exec, or of an earlier group's
	}
	changed := make(chan os.Signal, 1) // one pending signal stands for all: all children are examined
	signal.Notify(changed, syscall.SIGCHLD)
	unguarded, err := g.start(path, argv, env)
	started <- err
	if err == nil {
		if unguarded != nil {
			g.noGuardian(unguarded)
		}
		g.watch(changed)
	}
	// From here the system reaps the guardian, and orphans that come later; but not what is dead already.
	signal.Ignore(syscall.SIGCHLD)
	for g.reap() {
	}
	if err == nil {
		g.events <- Event{Kind: Gone}
	}
}

func (g *Group) watch(changed <-chan os.Signal) {
	for !g.gone() {
		select {
		case <-changed:
			for g.reap() {
			}
		case err := <-g.launched:
			g.becomesCommand(err)
		case <-g.guardian.due:
			g.replaceGuardian()
		case <-g.again:
		}
	}
}

// reap takes one change of a child, if there is one.
func (g *Group) reap() (more bool) {
	var status syscall.WaitStatus
	g.mu.Lock()
	pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
	if !status.Stopped() {
		delete(g.others, pid)
	}
	g.mu.Unlock() // the events below may have to wait for their reader
	switch {
	case err != nil || pid == 0:
		return err == syscall.EINTR
	case pid == g.guardian.id:
		g.guardian.changed(status)
	case pid != g.id || g.exited: // an orphan
	case status.Stopped():
		g.events <- Event{Kind: Stopped, Signal: status.StopSignal()}
	default:
		g.ended(status)
	}
	return true
}

// ended tells how the command ended. The launcher's end of the connection has closed with it.
func (g *Group) ended(status syscall.WaitStatus) {
	e := Event{Kind: Exited, Status: Status{Code: status.ExitStatus()}}
	if status.Signaled() {
		e.Status = Status{Signal: status.Signal()}
	}
	if g.launching {
		g.becomesCommand(<-g.launched)
	}
	if g.failure != nil {
		e = Event{Kind: Failed, Err: g.failure}
	}
	g.events <- e
	g.exited, g.delay = true, time.Millisecond
}

// gone reports whether nothing is left that is waited for. If something is, it is to be called again
// when a child has changed, and after a while.
//
// Orphans of the group become children of this process where the system allows it (see adopt). The
// others have a living parent outside of the group, or init adopts them: for them it polls. The
// number cannot become another group's meanwhile: the kernel gives it to no new process while one
// is in the group, and gone looks again within 100 ms after the last has ended.
func (g *Group) gone() bool {
	if !g.exited {
		return false
	}
	g.again, g.delay = time.After(g.delay), min(2*g.delay, 100*time.Millisecond)
	if !g.empty {
		if g.Signal(0) != syscall.ESRCH && g.working() {
			return false
		}
		g.guardian.dismiss()
		g.mu.Lock()
		g.empty = true
		g.mu.Unlock()
	}
	m, left := g.Left()
	if left && !g.told {
		g.told, g.delay = true, time.Millisecond
		g.events <- Event{Kind: Detached, Member: m}
	}
	return !left || !g.detached
}

// Events reports what happens to the group, until Gone.
func (g *Group) Events() <-chan Event { return g.events }

// Signal sends a signal to every process of the group. It must not be called after Gone: another
// process may have the number by then.
//
// A launcher is a Go program for a millisecond, and does not take signals as the command would: USR1
// would be lost, and QUIT would cause a dump. They are held until the launcher has become the
// command. KILL and STOP, which need no handler, are not held. CONT is sent and held, for the TERM
// before it: between becoming the command and getting the held signals it may stop itself.
//
// When the group is empty, the detached processes that are waited for get the signal.
func (g *Group) Signal(sig syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.empty {
		return g.signalDetached(sig)
	}
	if g.launching && sig != 0 && sig != syscall.SIGKILL && sig != syscall.SIGSTOP {
		g.held = append(g.held, sig)
		if sig != syscall.SIGCONT {
			return nil
		}
	}
	return syscall.Kill(-g.id, sig)
}
