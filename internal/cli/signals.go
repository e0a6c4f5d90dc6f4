package cli

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// signals are those sent to this process, in the order they came.
type signals struct {
	ch chan os.Signal
}

// catchSignals begins to collect signals instead of dying of them. Those that our parent
// had us ignore (nohup, a background job of a plain shell) stay ignored, for us and for
// the command: see group.KeepIgnored.
func catchSignals() *signals {
	s := &signals{ch: make(chan os.Signal, 16)} // more at once than that is no instruction
	for _, sig := range forwardSignals {
		if !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	return s
}

// close ends the collecting: signals have their default effect again.
func (s *signals) close() { signal.Stop(s.ch) }

// interruptible is for the verbs that run no command: a context that ends with a signal.
func interruptible() (ctx context.Context, stop func()) {
	s := catchSignals()
	ctx, cancel := s.until(context.Background())
	return ctx, func() {
		_ = cancel() // the verb has seen it by ctx, or was done
		s.close()
	}
}

// until returns a context that ends, with an interrupted cause, when a signal asks us to
// end. Signals that are meant for a command are dropped: there is none yet. stop must be
// called before somebody else reads the signals, and returns the interrupted error if one
// came: also one that came too late to be seen by whoever used ctx, and is nobody else's
// to see.
func (s *signals) until(parent context.Context) (ctx context.Context, stop func() error) {
	ctx, cancel := context.WithCancelCause(parent)
	var caught error // read after stopped is closed; ctx may have ended before for another cause
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case sig := <-s.ch:
				if slices.Contains(endSignals, sig) {
					caught = interrupted{sig.(syscall.Signal)}
					cancel(caught)
					return
				}
				if sig == stopSignal {
					stopSelf()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() error {
		cancel(nil)
		<-stopped
		return caught
	}
}

// surviveClosedPipes has a write to a standard stream whose reader has gone fail with an
// error instead of killing us, and the command with us. Caught rather than ignored: what
// is ignored stays so in the command, as it does if our parent has had it ignored.
func surviveClosedPipes() {
	if !signal.Ignored(syscall.SIGPIPE) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
}
