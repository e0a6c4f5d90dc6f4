package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
)

// The exit codes: those of sysexits.h where one fits, of timeout(1) and the shell
// otherwise. manual.Exit documents them.
const (
	exitOK            = 0
	exitNo            = 1 // of the verbs that are asked a question
	exitUsage         = 64
	exitUnreachable   = 69
	exitInternal      = 70
	exitBusy          = 75
	exitLost          = 76
	exitConfig        = 78
	exitOverdue       = 124
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal's number
)

// outcome names how hasp ended in the machine-readable reports.
type outcome string

const (
	outcomeOK            outcome = "ok"       // nothing had to be run, and there was no error
	outcomeNo            outcome = "no"       // the answer to a question
	outcomeExited        outcome = "exited"   // the command, by itself; child_exit
	outcomeSignaled      outcome = "signaled" // the command, by a signal; child_signal
	outcomeOverdue       outcome = "overdue"  // the command, stopped after --max-hold
	outcomeLost          outcome = "lost"     // the lock; the command was stopped
	outcomeBusy          outcome = "busy"     // held by another, or the wait was over
	outcomeInterrupted   outcome = "interrupted"
	outcomeUnreachable   outcome = "unreachable"
	outcomeConfig        outcome = "configuration"
	outcomeRefused       outcome = "refused" // by the store; the exit code is that of a configuration error
	outcomeUsage         outcome = "usage"
	outcomeNotFound      outcome = "command not found"
	outcomeNotExecutable outcome = "command not executable"
	outcomeInternal      outcome = "internal error"
)

// failure is the error of every verb: it knows its exit code.
type failure struct {
	code    int
	outcome outcome
	err     error
	told    bool // in words, already
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// within is an error of the library inside another message, which has the prefix already.
type within struct{ error }

func (w within) Error() string { return strings.TrimPrefix(w.error.Error(), "hasp: ") }
func (w within) Unwrap() error { return w.error }

func usage(format string, args ...any) *failure {
	return &failure{code: exitUsage, outcome: outcomeUsage, err: fmt.Errorf(format, args...)}
}

func misconfigured(format string, args ...any) *failure {
	return &failure{code: exitConfig, outcome: outcomeConfig, err: fmt.Errorf(format, args...)}
}

// interrupted is the cause of a context that a signal ended, or why hasp acts as if it had.
type interrupted struct {
	signal syscall.Signal
	why    string
}

func (e interrupted) Error() string { return cmp.Or(e.why, "interrupted by "+signalName(e.signal)) }

var errOrphaned = interrupted{syscall.SIGTERM, "the process that started hasp has ended"}

// fail gives an error of the library its exit code.
func fail(err error) *failure {
	var f *failure
	var in interrupted
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &in):
		return &failure{exitSignal + int(in.signal), outcomeInterrupted, in, false}
	case errors.Is(err, hasp.ErrLost):
		return &failure{exitLost, outcomeLost, err, false}
	case errors.Is(err, hasp.ErrBusy):
		return &failure{exitBusy, outcomeBusy, err, false}
	case errors.Is(err, hasp.ErrInvalidOption), errors.Is(err, hasp.ErrUnsupported),
		errors.Is(err, hasp.ErrMismatch), errors.Is(err, hasp.ErrDeadlock),
		errors.Is(err, fs.ErrPermission):
		return &failure{exitConfig, outcomeConfig, err, false}
	case errors.Is(err, hasp.ErrRefused):
		// The store has answered, so not 69: a script that retries on 69 would do so until an
		// administrator grants the permission or makes room. And it would do so on this store only:
		// another store calls the same fault a wrong setting.
		return &failure{exitConfig, outcomeRefused, err, false}
	case errors.Is(err, hasp.ErrClosed), errors.Is(err, hasp.ErrNotHeld):
		return &failure{exitInternal, outcomeInternal, err, false}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{exitUnreachable, outcomeUnreachable, fmt.Errorf("the store did not answer in time: %w", within{err}), false}
	}
	// The text of the store's or the network's error.
	return &failure{exitUnreachable, outcomeUnreachable, err, false}
}

// notRunnable gives the errors of looking up and starting a command their codes.
func notRunnable(command string, err error) *failure {
	f := &failure{code: exitNotExecutable, outcome: outcomeNotExecutable}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		f.code, f.outcome = exitNotFound, outcomeNotFound
	}
	var lookup *exec.Error
	var path *os.PathError
	switch {
	case errors.As(err, &lookup):
		err = lookup.Err
	case errors.As(err, &path):
		err = path.Err
	}
	f.err = fmt.Errorf("cannot run %s: %w", view.Quote(command), err)
	if strings.ContainsAny(command, " &|;<>$") {
		f.err = fmt.Errorf("%w; a line of the shell is run by: sh -c '...'", f.err)
	}
	return f
}
