//go:build unix

// Package bound is about the process whose life bounds that of a background holder.
package bound

import (
	"os"
	"syscall"
	"time"
)

// Process is a process whose life bounds that of a background holder.
type Process struct {
	PID  int
	File *os.File // a pidfd; nil where there is none
}

// lookEvery is how often a process is looked for where the system cannot tell of its end.
const lookEvery = time.Second

// Ended returns a channel that is closed when the process has ended. Without a pidfd it looks each
// second; a process that has got the number of a dead one within it is taken for that one.
func (b *Process) Ended() <-chan struct{} {
	done := make(chan struct{})
	go func() { // ends with this process
		defer close(done)
		if b.File != nil && awaitExit(b.File) {
			return
		}
		for alive := true; alive; time.Sleep(lookEvery) {
			alive = syscall.Kill(b.PID, 0) != syscall.ESRCH
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
