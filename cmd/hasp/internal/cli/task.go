package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/signals"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
)

// task is a command to run under a lease.
type task struct {
	path      string
	argv, env []string
	lease     *commandLease
	flags     *commandFlags
	maxHold   time.Duration   // 0: no limit
	orphaned  <-chan struct{} // closed when the process that started hasp has ended, if that ends the task
	signals   *signals.Signals
	explain   func(lost error) error // see explainLoss
	requests  <-chan hasp.Owner      // see whenAsked
	report    *reporter
}

// ending is how a command's run under its lock ended.
type ending struct {
	notStarted error // a *failure
	status     group.Status
	lost       error // why the lock was lost or about to be lost, and the command was told
	ignoreLoss bool  // --on-lost ignore: the outcome is still the command's status
	overdue    time.Duration
	stopped    bool          // hasp itself told it to end
	worked     time.Duration // for how long after that, because it could not be signalled
	ended      bool          // a signal asked hasp to end; elect does not campaign again
}

func (e *ending) record() record {
	var rec record
	if e.notStarted != nil {
		return rec
	}
	if e.status.Signal != 0 {
		rec.Outcome, rec.ChildSignal = exit.OutcomeSignaled, signals.Name(e.status.Signal)
	} else {
		rec.Outcome, rec.ChildExit = exit.OutcomeExited, &e.status.Code
	}
	return rec
}

// reason adds to a loss who caused it, now that nothing runs under the lock.
func (e *ending) reason(t *task) {
	if e.lost != nil && !e.ignoreLoss {
		e.lost = t.explain(e.lost)
	}
}

// failure is the exit code and its reason; nil for success.
func (e *ending) failure() *exit.Failure {
	switch {
	case e.notStarted != nil:
		return exit.Of(e.notStarted)
	case e.lost != nil && !e.ignoreLoss:
		return &exit.Failure{Code: exit.CodeLost, Outcome: exit.OutcomeLost, Err: e.withStopResult(e.lost)}
	case e.overdue > 0:
		err := fmt.Errorf("held for %s, the longest allowed", e.overdue)
		return &exit.Failure{Code: exit.CodeOverdue, Outcome: exit.OutcomeOverdue, Err: e.withStopResult(err)}
	case e.status.Signal != 0:
		return &exit.Failure{Code: e.status.ExitCode(), Outcome: exit.OutcomeSignaled}
	case e.status.Code != 0:
		return &exit.Failure{Code: e.status.Code, Outcome: exit.OutcomeExited}
	}
	return nil
}

// withStopResult adds to the reason for stopping the command whether it was stopped.
func (e *ending) withStopResult(err error) error {
	switch {
	case e.worked > 0:
		return fmt.Errorf("%w; the command could not be stopped, since it runs as another user, and worked on for %s", err, view.Brief(e.worked))
	case e.stopped:
		return fmt.Errorf("%w; the command was stopped", err)
	}
	return err
}

// notRunnable gives the errors of looking up and starting a command their codes.
func notRunnable(command string, err error) *exit.Failure {
	f := &exit.Failure{Code: exit.CodeNotExecutable, Outcome: exit.OutcomeNotExecutable}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		f.Code, f.Outcome = exit.CodeNotFound, exit.OutcomeNotFound
	}
	var lookup *exec.Error
	var path *os.PathError
	switch {
	case errors.As(err, &lookup):
		err = lookup.Err
	case errors.As(err, &path):
		err = path.Err
	}
	f.Err = fmt.Errorf("cannot run %s: %w", view.Quote(command), err)
	if strings.ContainsAny(command, " &|;<>$") {
		f.Err = fmt.Errorf("%w; a line of the shell is run by: sh -c '...'", f.Err)
	}
	return f
}

// wordSay is the value of --on-ask by which only people are told.
const wordSay = "say"

// asks are the requests for a lock. The library reports each once, perhaps before the command has
// started. Requests beyond the channel's capacity are dropped: the command has been told.
func asks() chan hasp.Owner { return make(chan hasp.Owner, 16) }

// askEvery is how often the queue is read for people.
const askEvery = 3 * time.Second

// whenAsked has the library look for requests for the lock, as --on-ask says. People are told
// within three seconds, which costs nothing for a short run. A
// command that reacts is told at once, at the price of a watch on the name.
//
// A store that does not show who waits has no requests. --on-ask stop is refused there, by the
// library; the default has nothing to say.
func (f *commandFlags) whenAsked(c *hasp.Client, requests chan<- hasp.Owner) []hasp.LockOption {
	pass := func(by hasp.Owner) {
		select {
		case requests <- by:
		default:
		}
	}
	switch {
	case f.onAsk.ignores(), f.onAsk.says() && (!c.Traits().FIFO || f.unheard()):
		return nil
	case f.onAsk.says():
		return []hasp.LockOption{hasp.Revocable(askEvery, pass)}
	}
	return []hasp.LockOption{hasp.Revocable(0, pass)}
}

// unheard reports that words about the lock reach no one.
func (f *commandFlags) unheard() bool { return f.quiet && f.statusFD == -1 }
