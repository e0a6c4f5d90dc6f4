// Package signals collects the signals that are sent to this process, so that hasp can answer them
// in its own order: pass them on to a command, stop, or end with the locks given back.
package signals

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Signals are those sent to this process, in the order of arrival.
type Signals struct {
	C     chan os.Signal
	Again chan struct{} // not nil: HUP asks to read files again, and does not end
}

// Catch begins to collect signals instead of dying of them. Those that the parent process made us
// ignore (nohup, a background job of a plain shell) stay ignored, for us and for the command: see
// KeepIgnored.
func Catch() *Signals {
	keepIgnored()
	s := &Signals{C: make(chan os.Signal, 16)} // more at once are dropped
	for _, sig := range forwarded {
		if !signal.Ignored(sig) {
			signal.Notify(s.C, sig)
		}
	}
	return s
}

var keepIgnored = sync.OnceFunc(KeepIgnored)

// Close ends the collecting: signals have their default effect again.
func (s *Signals) Close() { signal.Stop(s.C) }

// Until returns a context that ends, with an [Interrupted] cause, when a signal asks hasp to end.
// Signals that are meant for a command are dropped: there is none yet. stop must be called before
// other code reads the signals. It returns that error if a signal came, even one that
// came too late to be seen by the user of ctx: no other code would see it.
func (s *Signals) Until(parent context.Context) (ctx context.Context, stop func() error) {
	ctx, cancel := context.WithCancelCause(parent)
	var caught error // read after stopped is closed; ctx may have ended earlier for another cause
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case sig := <-s.C:
				if sig == syscall.SIGHUP && s.Again != nil {
					select {
					case s.Again <- struct{}{}:
					default: // it is about to
					}
					continue
				}
				if slices.Contains(End, sig) {
					caught = Interrupted{Signal: sig.(syscall.Signal)}
					cancel(caught)
					return
				}
				if sig == Stop {
					_ = StopSelf()
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

// Interrupted is the cause of a context that a signal ended, or why hasp acts as if it had.
type Interrupted struct {
	Signal syscall.Signal
	Why    string
}

func (e Interrupted) Error() string { return cmp.Or(e.Why, "interrupted by "+Name(e.Signal)) }

// ErrOrphaned is the cause of a context of WhileParent.
var ErrOrphaned = Interrupted{syscall.SIGTERM, "the process that started hasp has ended"}

// parentEvery is how often hasp looks whether the process that started it has ended.
const parentEvery = 200 * time.Millisecond

// WhileParent returns a context that ends when the process that started this one has ended: this
// one then has another parent, which needs no number that could be another process's by now. The
// kernel's notice (PR_SET_PDEATHSIG) will not do: it comes when the thread has ended that started
// this process, and a parent written in Go or Java may end its threads long before itself.
//
// A parent that ends before the first look, some milliseconds after the start, is not noticed. That
// process 1 is the parent then says nothing: in a container or a unit it may be who has started us.
func WhileParent() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	parent := os.Getppid()
	go func() { // ends with this process
		for os.Getppid() == parent {
			time.Sleep(parentEvery)
		}
		cancel(ErrOrphaned)
	}()
	return ctx
}
