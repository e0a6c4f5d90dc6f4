package cli

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
)

// signals holds the signals sent to this process, in the order of arrival.
type signals struct {
	ch    chan os.Signal
	again chan struct{} // not nil: HUP asks to read files again, and does not end
}

// catchSignals begins to collect signals instead of dying of them. Those that the parent process
// made us ignore (nohup, a background job of a plain shell) stay ignored, for us and for the
// command: see group.KeepIgnored.
func catchSignals() *signals {
	keepIgnored()
	s := &signals{ch: make(chan os.Signal, 16)} // more at once are dropped
	for _, sig := range forwardSignals {
		if !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	return s
}

var keepIgnored = sync.OnceFunc(group.KeepIgnored)

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

// until returns a context that ends, with an interrupted cause, when a signal asks hasp to end.
// Signals that are meant for a command are dropped: there is none yet. stop must be called before
// other code reads the signals. It returns the interrupted error if a signal came, even one that
// came too late to be seen by the user of ctx: no other code would see it.
func (s *signals) until(parent context.Context) (ctx context.Context, stop func() error) {
	ctx, cancel := context.WithCancelCause(parent)
	var caught error // read after stopped is closed; ctx may have ended earlier for another cause
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case sig := <-s.ch:
				if sig == syscall.SIGHUP && s.again != nil {
					select {
					case s.again <- struct{}{}:
					default: // it is about to
					}
					continue
				}
				if slices.Contains(endSignals, sig) {
					caught = interrupted{signal: sig.(syscall.Signal)}
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

// parentEvery is how often hasp looks whether the process that started it has ended.
const parentEvery = 200 * time.Millisecond

// whileParent returns a context that ends when the process that started this one has ended: this one
// then has another parent, which needs no number that could be another process's by now. The
// kernel's notice (PR_SET_PDEATHSIG) will not do: it comes when the thread has ended that started
// this process, and a parent written in Go or Java may end its threads long before itself.
//
// A parent that ends before the first look, some milliseconds after the start, is not noticed. That
// process 1 is the parent then says nothing: in a container or a unit it may be who has started us.
func whileParent() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	parent := os.Getppid()
	go func() { // ends with this process
		for os.Getppid() == parent {
			time.Sleep(parentEvery)
		}
		cancel(errOrphaned)
	}()
	return ctx
}

// surviveClosedPipes makes a write to a standard stream whose reader has gone fail with an error
// instead of killing hasp, and the command with it. SIGPIPE is caught and not ignored: an ignored
// signal stays ignored in the command, as it does if the parent process ignored it.
var surviveClosedPipes = sync.OnceFunc(func() {
	if !signal.Ignored(syscall.SIGPIPE) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
})
