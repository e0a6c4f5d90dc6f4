//go:build unix

package group

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// reaper takes in the status of every child of this process: the commands, their adopted
// orphans, the guardians. There is one for all, since it cannot ask for less than "any
// child" without missing the orphans, whose numbers it does not know.
//
// It reaps with mu held and never waits there. So whoever holds mu knows of a number in the
// table that it is still that process's: the system gives it to nobody before it is reaped.
// The road not taken, a wait that blocks without mu, leaves a moment after it in which the
// number is free and the table does not say so: a fork may get it, and the old status.
type reaper struct {
	mu      sync.Mutex
	tell    map[int]func(pid int, ws syscall.WaitStatus) // by number, until the process has ended
	changed map[*Group]struct{}                          // to be poked when any child has changed
	once    sync.Once
}

var children = reaper{tell: map[int]func(pid int, ws syscall.WaitStatus){}, changed: map[*Group]struct{}{}}

// fork starts a process of which tell is told all changes, by the reaper's goroutine.
func (r *reaper) fork(path string, argv []string, attr *syscall.ProcAttr, tell func(pid int, ws syscall.WaitStatus)) (int, error) {
	r.once.Do(func() {
		adopt()
		born := make(chan os.Signal, 1) // one that is pending stands for all: all are looked at
		signal.Notify(born, syscall.SIGCHLD)
		go r.run(born)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, err
	}
	r.tell[pid] = tell
	return pid, nil
}

func (r *reaper) watch(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed[g] = struct{}{}
}

func (r *reaper) forget(g *Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.changed, g)
}

func (r *reaper) run(changes <-chan os.Signal) {
	for range changes {
		for {
			report, more := r.next()
			if !more {
				break
			}
			report() // without mu: it may wait for whoever reads the events
		}
	}
}

// next takes in one status, if there is one.
func (r *reaper) next() (report func(), more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := 0, error(syscall.EINTR)
	for errors.Is(err, syscall.EINTR) {
		pid, err = syscall.Wait4(-1, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
	}
	if err != nil || pid == 0 {
		return nil, false
	}
	tell := r.tell[pid]
	if !status.Stopped() {
		delete(r.tell, pid)
	}
	for g := range r.changed {
		select {
		case g.changed <- struct{}{}:
		default: // one pending look sees all
		}
	}
	return func() {
		if tell != nil { // an orphan's, otherwise
			tell(pid, status)
		}
	}, true
}
