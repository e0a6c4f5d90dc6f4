// Package job runs a command under a lock, until all that the command has started has ended.
// It passes signals on, and ends the command when the lock is lost, asked for or held for too long.
// It knows of the lock what [Lock] says, and nothing of the store: its caller acquires the lock,
// and releases it afterwards.
package job

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
)

// Lock has what a job watches: one lock, or several as one.
type Lock interface {
	Held() bool
	Context() context.Context
	Err() error
	Deadline() time.Time
}

// Task is a command to run under a lock that is held.
type Task struct {
	Path        string // of the program: see Find
	Argv, Env   []string
	WaitDaemons bool // wait for what leaves the command's process group, too

	Lock        Lock
	Name, Store string // of the lock, for messages
	Acquired    time.Time
	MaxHold     time.Duration // since then; 0: no limit

	KillAfter     time.Duration // how long after TERM the command gets KILL
	OnLost, OnAsk Reaction
	Signals       <-chan os.Signal
	Orphaned      <-chan struct{}   // closed when the process that started hasp has ended, if that ends the task
	Requests      <-chan hasp.Owner // for the lock

	Explain     func(lost error) error           // adds who caused it; it may ask the store
	Say, Detail func(format string, args ...any) // tell people; of each step
	Event       func(name, message string, by *hasp.Owner)
}

// Ending is how a command's run under its lock ended.
type Ending struct {
	NotStarted error // an *exit.Failure
	Status     group.Status
	Lost       error // why the lock was lost or about to be lost, and the command was told
	Ended      bool  // hasp was asked to end, by a signal or with its parent

	ignoreLoss bool // --on-lost ignore: the outcome is still the command's status
	overdue    time.Duration
	stopped    bool          // hasp itself told it to end
	worked     time.Duration // for how long after that, because it could not be signalled
}

// lost says whether a loss is the outcome.
func (e *Ending) lost() bool { return e.Lost != nil && !e.ignoreLoss }

// Explain adds to a loss who caused it, now that nothing runs under the lock.
func (e *Ending) Explain(why func(lost error) error) {
	if e.lost() {
		e.Lost = why(e.Lost)
	}
}

// Failure is the exit code and its reason; nil for success.
func (e *Ending) Failure() *exit.Failure {
	switch {
	case e.NotStarted != nil:
		return exit.Of(e.NotStarted)
	case e.lost():
		return &exit.Failure{Code: exit.CodeLost, Outcome: exit.OutcomeLost, Err: e.withStopResult(e.Lost)}
	case e.overdue > 0:
		err := fmt.Errorf("held for %s, the longest allowed", e.overdue)
		return &exit.Failure{Code: exit.CodeOverdue, Outcome: exit.OutcomeOverdue, Err: e.withStopResult(err)}
	case e.Status.Signal != 0:
		return &exit.Failure{Code: e.Status.ExitCode(), Outcome: exit.OutcomeSignaled}
	case e.Status.Code != 0:
		return &exit.Failure{Code: e.Status.Code, Outcome: exit.OutcomeExited}
	}
	return nil
}

// withStopResult adds to the reason for stopping the command whether it was stopped.
func (e *Ending) withStopResult(err error) error {
	switch {
	case e.worked > 0:
		return fmt.Errorf("%w; the command could not be stopped, since it runs as another user, and worked on for %s", err, view.Brief(e.worked))
	case e.stopped:
		return fmt.Errorf("%w; the command was stopped", err)
	}
	return err
}

// Find looks a program up before its lock is asked for: a mistyped command is refused at once, not
// after an hour in the queue. It also refuses what this system cannot do.
func Find(program string, waitDaemons bool) (path string, err error) {
	switch {
	case !group.Supported:
		return "", exit.Misconfigured("commands cannot be run under a lock on this system yet; hasp hold and the library can be used")
	case waitDaemons && !group.SeesDetached():
		return "", exit.Misconfigured("--wait-daemons: this system does not show hasp what leaves the command's process group; it needs Linux, with /proc")
	}
	if path, err = lookPath(program); err != nil {
		return "", notRunnable(program, err)
	}
	return path, nil
}

// lookPath finds a program as the shell, flock and execvp do: also by a relative entry of PATH, and
// in the system's folders where there is no PATH.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	if errors.Is(err, exec.ErrDot) {
		return path, nil
	}
	if _, set := os.LookupEnv("PATH"); err != nil && !set && !strings.Contains(program, "/") {
		for _, dir := range []string{"/usr/bin", "/bin"} {
			if found, ferr := exec.LookPath(dir + "/" + program); ferr == nil {
				return found, nil
			}
		}
	}
	return path, err
}

// notRunnable gives the errors of looking up and starting a command their codes.
func notRunnable(command string, err error) *exit.Failure {
	f := &exit.Failure{Code: exit.CodeNotExecutable, Outcome: exit.OutcomeNotExecutable}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		f.Code, f.Outcome = exit.CodeNotFound, exit.OutcomeNotFound
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) { // without the name, which stands before it
		err = inner
	}
	f.Err = fmt.Errorf("cannot run %s: %w", view.Quote(command), err)
	if strings.ContainsAny(command, " &|;<>$") {
		f.Err = fmt.Errorf("%w; a line of the shell is run by: sh -c '...'", f.Err)
	}
	return f
}

// Reaction is the signal a command gets when something happens to its lock. It is the value of a
// flag.
type Reaction struct {
	Most   string         // the word for ending the command
	Words  string         // the word for telling people only; "" if there is none
	Text   string         // as given
	Signal syscall.Signal // of signal:NAME
}

// Set reads one of the two words, ignore or signal:NAME.
func (p *Reaction) Set(text string) error {
	name, isSignal := strings.CutPrefix(text, "signal:")
	switch {
	case text == p.Most, text == "ignore", text == p.Words && text != "":
		p.Text, p.Signal = text, 0
		return nil
	case isSignal:
		if sig := signals.ByName(name); sig != 0 {
			p.Text, p.Signal = text, sig
			return nil
		}
	}
	if p.Words != "" {
		return fmt.Errorf("must be %s, %s, ignore or signal:NAME, as in signal:USR1", p.Most, p.Words)
	}
	return fmt.Errorf("must be %s, ignore or signal:NAME, as in signal:USR1", p.Most)
}

// Ends reports whether the command is ended.
func (p *Reaction) Ends() bool { return p.Text == p.Most }

// Says reports whether people alone are told.
func (p *Reaction) Says() bool { return p.Words != "" && p.Text == p.Words }

// Ignores reports whether the command goes on without a word.
func (p *Reaction) Ignores() bool { return p.Text == "ignore" }

func (p *Reaction) String() string { return p.Text }

// Type lists the values.
func (p *Reaction) Type() string {
	if p.Words != "" {
		return p.Most + "|signal:NAME|" + p.Words + "|ignore"
	}
	return p.Most + "|signal:NAME|ignore"
}
