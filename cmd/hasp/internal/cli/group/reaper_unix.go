//go:build unix

package group

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// reaper reaps every child of this process: the commands, their adopted orphans, the guardians.
// There is one for all, since it must wait for "any child": it does not know the numbers of the
// orphans. So in this process nothing else may start one: the Wait of os/exec would find its child
// reaped.
//
// It reaps with mu held and never waits there. So while a goroutine holds mu, a number in the table
// still belongs to that process: the system reuses no number before its process is reaped. The
// alternative, a wait that blocks without mu, leaves a moment after it in which the number is free
// and the table does not show it: a fork may get the number, and the old status.
type reaper struct {
	mu      sync.Mutex
	tell    map[int]func(pid int, ws syscall.WaitStatus) // by number, until the process has ended
	changed map[*Group]struct{}                          // to be woken when any child has changed
	once    sync.Once
}

var children = reaper{tell: map[int]func(pid int, ws syscall.WaitStatus){}, changed: map[*Group]struct{}{}}

// start runs fork, which starts a process. The reaper's goroutine calls tell for each change of it.
func (r *reaper) start(fork func() (pid int, err error), tell func(pid int, ws syscall.WaitStatus)) (int, error) {
	r.once.Do(func() {
		adopt()
		for _, pid := range childNumbers() {
			r.tell[pid] = nil // of the program that this process was before its exec
		}
		born := make(chan os.Signal, 1) // one pending signal stands for all: all are examined
		signal.Notify(born, syscall.SIGCHLD)
		go r.run(born)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
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
			report() // without mu: it may wait for the reader of the events
		}
	}
}

// next reaps one status, if there is one.
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
		if tell != nil { // otherwise it is an orphan's
			tell(pid, status)
		}
	}, true
}
