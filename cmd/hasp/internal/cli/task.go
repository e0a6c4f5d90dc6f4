package cli

import (
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
)

// task is a command to run under a lease.
type task struct {
	path      string
	argv, env []string
	lease     *commandLease
	flags     *commandFlags
	maxHold   time.Duration // 0: no limit
	signals   *signals
	explain   func(lost error) error // see explainLoss
	requests  <-chan hasp.Owner      // see heed
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
		rec.Outcome, rec.ChildSignal = outcomeSignaled, signalName(e.status.Signal)
	} else {
		rec.Outcome, rec.ChildExit = outcomeExited, &e.status.Code
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
func (e *ending) failure() *failure {
	switch {
	case e.notStarted != nil:
		return fail(e.notStarted)
	case e.lost != nil && !e.ignoreLoss:
		return &failure{code: exitLost, outcome: outcomeLost, err: e.withFate(e.lost)}
	case e.overdue > 0:
		err := fmt.Errorf("held for %s, the longest allowed", e.overdue)
		return &failure{code: exitOverdue, outcome: outcomeOverdue, err: e.withFate(err)}
	case e.status.Signal != 0:
		return &failure{code: e.status.ExitCode(), outcome: outcomeSignaled}
	case e.status.Code != 0:
		return &failure{code: e.status.Code, outcome: outcomeExited}
	}
	return nil
}

// withFate adds to the reason for stopping the command whether it was stopped.
func (e *ending) withFate(err error) error {
	switch {
	case e.worked > 0:
		return fmt.Errorf("%w; the command could not be stopped, since it runs as another user, and worked on for %s", err, brief(e.worked))
	case e.stopped:
		return fmt.Errorf("%w; the command was stopped", err)
	}
	return err
}
