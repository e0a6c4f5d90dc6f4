//go:build unix

package group

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Supported says whether commands can be run in groups.
const Supported = true

// Group is a running command and what it has started. Its methods may be called from any
// goroutine; Events has one reader.
type Group struct {
	id       int // of the group, and of the command's process
	events   chan Event
	exited   chan struct{} // closed once Exited has been told
	changed  chan struct{} // some child was reaped: look again whether the group is gone
	guardian int           // its process, 0 if there is none
	lifeline *os.File      // closed by our death; see guardian_unix.go
}

// Start runs path in a new process group with this process's standard files. argv[0] is
// the command's name for itself, as in execve.
func Start(path string, argv, env []string) (*Group, error) {
	// Room for all that can come while the reader is busy; beyond that the reaper waits.
	g := &Group{events: make(chan Event, 16), exited: make(chan struct{}), changed: make(chan struct{}, 1)}
	started, gone := make(chan error), make(chan struct{})
	go func() {
		// The parent-death signal is sent when the thread that forked ends, not the
		// process. Left to the scheduler, the thread may end at any time and the command
		// be killed for nothing: so this goroutine keeps it until the group is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := children.fork(g, path, argv, env)
		started <- err
		if err == nil {
			<-gone
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	g.guard()
	go g.awaitGone(gone)
	return g, nil
}

// Events tells what happens to the group, until Gone.
func (g *Group) Events() <-chan Event { return g.events }

// Signal sends a signal to every process of the group. It must not be called after Gone:
// the number may be somebody else's by then.
func (g *Group) Signal(sig syscall.Signal) error { return syscall.Kill(-g.id, sig) }

// awaitGone watches the group until nobody is in it.
//
// Orphans of the group become our children where the system lets us adopt them (see
// adopt), and each death is then told by the reaper. The others have a living parent
// outside of the group, or are adopted by init: for their sake we also look from time to
// time. The number cannot be another's group meanwhile: the kernel gives it to no new
// process as long as one is in the group, and we look again within 100 ms after the last.
func (g *Group) awaitGone(gone chan<- struct{}) {
	<-g.exited // it has been reaped, but not told, for a moment in which the group is empty
	for delay := time.Millisecond; !errors.Is(g.Signal(0), syscall.ESRCH); {
		select {
		case <-g.changed:
		case <-time.After(delay):
			delay = min(2*delay, 100*time.Millisecond)
		}
	}
	g.dismiss()
	children.forget(g)
	close(gone)
	g.events <- Event{Kind: Gone}
}

// reaper takes in the status of every child of this process: the commands, their adopted
// orphans, the guardians. There is one for all, since it cannot ask for less than "any
// child" without missing the orphans, whose numbers it does not know.
type reaper struct {
	mu      sync.Mutex
	groups  map[int]*Group
	running bool
}

var children = reaper{groups: map[int]*Group{}}

// fork starts the command. It holds mu, so that the reaper cannot take in the status of a
// process that is not in the table yet.
func (r *reaper) fork(g *Group, path string, argv, env []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	adopt()
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2}, Sys: commandAttr(),
	})
	if err != nil {
		return err
	}
	g.id = pid
	r.groups[pid] = g
	r.ensureLocked()
	return nil
}

func (r *reaper) ensureLocked() {
	if !r.running {
		r.running = true
		go r.run()
	}
}

func (r *reaper) forget(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.groups, g.id)
}

// run reaps until there are no children. It may outlive a group: a daemon that left its
// group is our child as long as it lives.
func (r *reaper) run() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		r.mu.Lock()
		if err != nil {
			// No children. A command forked just before we took mu has not been seen by that
			// call: look once more while nobody can fork.
			pid, err = syscall.Wait4(-1, &ws, syscall.WUNTRACED|syscall.WNOHANG, nil)
			if err != nil {
				r.running = false
				r.mu.Unlock()
				return
			}
		}
		g := r.groups[pid]
		for _, other := range r.groups {
			select {
			case other.changed <- struct{}{}:
			default: // one pending look sees all
			}
		}
		r.mu.Unlock()
		if g != nil {
			g.tell(ws)
		}
	}
}

func (g *Group) tell(ws syscall.WaitStatus) {
	switch {
	case ws.Stopped():
		g.events <- Event{Kind: Stopped, Signal: ws.StopSignal()}
		return
	case ws.Signaled():
		g.events <- Event{Kind: Exited, Status: Status{Signal: ws.Signal()}}
	case ws.Exited():
		g.events <- Event{Kind: Exited, Status: Status{Code: ws.ExitStatus()}}
	}
	close(g.exited)
}
