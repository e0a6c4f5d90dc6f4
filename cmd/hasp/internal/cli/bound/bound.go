//go:build unix

// Package bound is about the process whose life bounds that of a background holder.
package bound

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a process whose life bounds that of a background holder.
type Process struct {
	PID   int
	Start string   // when it has started, in the system's own text; "" where that is not told
	File  *os.File // a pidfd; nil where there is none
}

// ID is another one for each process, also for one that gets the number of a dead one.
func (b *Process) ID() string { return strconv.Itoa(b.PID) + "." + b.Start }

// ByID is the process of an ID, which may have ended. nil: it is no ID.
func ByID(id string) *Process {
	pid, start, _ := strings.Cut(id, ".")
	n, err := strconv.Atoi(pid)
	if err != nil || n <= 0 {
		return nil
	}
	return &Process{PID: n, Start: start}
}

// Alive looks for the process by its number and its start.
func (b *Process) Alive() bool {
	if syscall.Kill(b.PID, 0) == syscall.ESRCH {
		return false
	}
	f, err := family(b.PID)
	return err != nil || b.Start == "" || f.start == b.Start
}

// Adopts reports whether this is the process of the system that becomes the parent of those whose
// parent has ended: then it is not the one that has started them. In a container process 1 may be
// the program that all is for.
func (b *Process) Adopts() bool {
	f, _ := family(b.PID)
	return b.PID == 1 && !contained() || f.name == "systemd" // each user may have one
}

// String is for people.
func (b *Process) String() string {
	f, _ := family(b.PID)
	return strings.TrimSpace(f.name + " pid " + strconv.Itoa(b.PID))
}

// Above are the processes above this one, the nearest first.
func Above() (all []*Process) {
	for pid := os.Getppid(); pid > 0; {
		f, _ := family(pid) // where it is not told, the parent is all that is known
		all = append(all, &Process{PID: pid, Start: f.start})
		pid = f.parent
	}
	return all
}

// relation has the facts that the system tells of a process.
type relation struct {
	parent int
	start  string
	name   string // of its program
	forked bool   // it is a fork of its parent that has executed nothing
}

// lookEvery is how often a process is looked for where the system cannot tell of its end.
const lookEvery = time.Second

// Ended returns a channel that is closed when the process has ended. Without a pidfd it looks each
// second.
func (b *Process) Ended() <-chan struct{} {
	done := make(chan struct{})
	go func() { // ends with this process
		defer close(done)
		if b.File != nil && awaitExit(b.File) {
			return
		}
		for b.Alive() {
			time.Sleep(lookEvery)
		}
	}()
	return done
}

// Signal sends a signal to this process, and never to another that has its number by now, where
// there is a pidfd.
func (b *Process) Signal(sig syscall.Signal) error {
	if b.File != nil {
		return signalFile(b.File, sig)
	}
	return syscall.Kill(b.PID, sig)
}
