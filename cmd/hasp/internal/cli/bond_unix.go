//go:build unix

package cli

import (
	"os"
	"syscall"
	"time"
)

// bond is a process whose life bounds that of a background holder.
type bond struct {
	pid  int
	file *os.File // a pidfd; nil where there is none
}

// bondEvery is how often a process is looked for where the system cannot tell of its end.
const bondEvery = time.Second

// ended returns a channel that is closed when the process has ended. Without a pidfd it looks each
// second; a process that has got the number of a dead one within it is taken for that one.
func (b *bond) ended() <-chan struct{} {
	done := make(chan struct{})
	go func() { // ends with this process
		defer close(done)
		if b.file != nil && awaitExit(b.file) {
			return
		}
		for alive := true; alive; time.Sleep(bondEvery) {
			alive = syscall.Kill(b.pid, 0) != syscall.ESRCH
		}
	}()
	return done
}

// signal sends a signal to this process, and never to another that has its number by now, where
// there is a pidfd.
func (b *bond) signal(sig syscall.Signal) error {
	if b.file != nil {
		return signalFile(b.file, sig)
	}
	return syscall.Kill(b.pid, sig)
}
