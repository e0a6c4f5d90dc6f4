// Package exit has the exit codes of hasp, and the errors that know theirs.
package exit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/signals"
)

// The exit codes: those of sysexits.h where one fits, of timeout(1) and the shell
// otherwise. manual.Exit documents them.
const (
	CodeOK            = 0
	CodeNo            = 1 // of the verbs that are asked a question
	CodeUsage         = 64
	CodeUnreachable   = 69
	CodeInternal      = 70
	CodeBusy          = 75
	CodeLost          = 76
	CodeConfig        = 78
	CodeOverdue       = 124
	CodeNotExecutable = 126
	CodeNotFound      = 127
	CodeSignal        = 128 // plus the signal's number
)

// Outcome names how hasp ended in the machine-readable reports.
type Outcome string

const (
	OutcomeOK            Outcome = "ok"         // nothing had to be run, and there was no error
	OutcomeNo            Outcome = "no"         // the answer to a question
	OutcomeExited        Outcome = "exited"     // the command, by itself; child_exit
	OutcomeSignaled      Outcome = "signaled"   // the command, by a signal; child_signal
	OutcomeOverdue       Outcome = "overdue"    // the command, stopped after --max-hold
	OutcomeLost          Outcome = "lost"       // the lock; the command was stopped
	OutcomeBusy          Outcome = "busy"       // held by another, or the wait was over
	OutcomeQuarantine    Outcome = "quarantine" // no holder is known, and the store grants nothing yet
	OutcomeUncertain     Outcome = "uncertain"  // its holder looks dead, and this try does not wait until that is certain
	OutcomeInterrupted   Outcome = "interrupted"
	OutcomeUnreachable   Outcome = "unreachable"
	OutcomeConfig        Outcome = "configuration"
	OutcomeRefused       Outcome = "refused" // by the store; the exit code is that of a configuration error
	OutcomeUsage         Outcome = "usage"
	OutcomeNotFound      Outcome = "command not found"
	OutcomeNotExecutable Outcome = "command not executable"
	OutcomeInternal      Outcome = "internal error"
)

// Failure is the error of every verb: it knows its exit code.
type Failure struct {
	Code    int
	Outcome Outcome
	Err     error
	Told    bool // in words, already
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Within is an error of the library inside another message, which has the prefix already.
func Within(err error) error { return within{err} }

type within struct{ error }

func (w within) Error() string { return strings.TrimPrefix(w.error.Error(), "hasp: ") }
func (w within) Unwrap() error { return w.error }

// Usage is a command line that is refused.
func Usage(format string, args ...any) *Failure {
	return &Failure{Code: CodeUsage, Outcome: OutcomeUsage, Err: fmt.Errorf(format, args...)}
}

// Misconfigured is a setting, a file or a store that cannot be used so.
func Misconfigured(format string, args ...any) *Failure {
	return &Failure{Code: CodeConfig, Outcome: OutcomeConfig, Err: fmt.Errorf(format, args...)}
}

// Of gives an error of the library its exit code.
func Of(err error) *Failure {
	var f *Failure
	var in signals.Interrupted
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &in):
		return &Failure{CodeSignal + int(in.Signal), OutcomeInterrupted, in, false}
	case errors.Is(err, hasp.ErrLost):
		return &Failure{CodeLost, OutcomeLost, err, false}
	case errors.Is(err, hasp.ErrBusy):
		return &Failure{CodeBusy, OutcomeBusy, err, false}
	case errors.Is(err, hasp.ErrQuarantine):
		return &Failure{CodeBusy, OutcomeQuarantine, err, false}
	case errors.Is(err, hasp.ErrInvalid), errors.Is(err, hasp.ErrUnsupported),
		errors.Is(err, hasp.ErrMismatch), errors.Is(err, hasp.ErrDeadlock),
		errors.Is(err, fs.ErrPermission):
		return &Failure{CodeConfig, OutcomeConfig, err, false}
	case errors.Is(err, hasp.ErrRefused):
		// The store has answered, so not 69: a script that retries on 69 would do so until an
		// administrator grants the permission or makes room. And it would do so on this store only:
		// another store calls the same fault a wrong setting.
		return &Failure{CodeConfig, OutcomeRefused, err, false}
	case errors.Is(err, hasp.ErrClosed), errors.Is(err, hasp.ErrNotHeld), errors.Is(err, hasp.ErrNotFound):
		return &Failure{CodeInternal, OutcomeInternal, err, false}
	case errors.Is(err, context.DeadlineExceeded):
		return &Failure{CodeUnreachable, OutcomeUnreachable, fmt.Errorf("the store did not answer in time: %w", within{err}), false}
	}
	// The text of the store's or the network's error.
	return &Failure{CodeUnreachable, OutcomeUnreachable, err, false}
}
