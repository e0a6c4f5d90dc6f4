//go:build unix

package cli

import (
	"os"
	"syscall"
	"time"
)

// boundProcess is a process whose life bounds that of a background holder.
type boundProcess struct {
	pid  int
	file *os.File // a pidfd; nil where there is none
}

// lookEvery is how often a process is looked for where the system cannot tell of its end.
const lookEvery = time.Second

// ended returns a channel that is closed when the process has ended. Without a pidfd it looks each
// second; a process that has got the number of a dead one within it is taken for that one.
func (b *boundProcess) ended() <-chan struct{} {
	done := make(chan struct{})
	go func() { // ends with this process
		defer close(done)
		if b.file != nil && awaitExit(b.file) {
			return
		}
		for alive := true; alive; time.Sleep(lookEvery) {
			alive = syscall.Kill(b.pid, 0) != syscall.ESRCH
		}
	}()
	return done
}

// signal sends a signal to this process, and never to another that has its number by now, where
// there is a pidfd.
func (b *boundProcess) signal(sig syscall.Signal) error {
	if b.file != nil {
		return signalFile(b.file, sig)
	}
	return syscall.Kill(b.pid, sig)
}
