package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/manual"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/output"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

func (a *app) holdCommand() *cobra.Command {
	f, x := &runFlags{}, &exportFlags{}
	c := &cobra.Command{
		Use:   "hold [flags] NAME",
		Short: "hold a lock without running a command",
		Long: `Wait for the lock NAME, print one line of JSON when it is held, and hold it until
standard input ends or INT, TERM, HUP or QUIT comes (exit code 0). If the lock is
lost, print a line that says so and exit with 76. For programs that talk to hasp
through a pipe: closing it, or dying, releases the lock. With -l in place of NAME
it holds several, all or none.

Under cron or as a service standard input ends at once; give it one that does not.

` + manual.Export + "\n\n" + manual.Background,
		Example: "  coproc hasp hold deploy; read -u ${COPROC[0]}; ...; exec {COPROC[1]}>&-\n" +
			"  eval \"$(hasp hold --export deploy)\"; ./build; hasp release --mine\n" +
			"  eval \"$(hasp hold --export -l accounts -l stock)\"\n" +
			"  hasp hold --background --pid $PPID testdb || hasp who --mine --wait 100s",
	}
	f.storeFlags.add(c.Flags(), "tell failures as JSON on standard error, too; standard output is JSON in any case")
	f.lockFlags.add(c.Flags())
	f.lockFlags.addWaiting(c.Flags())
	x.add(c.Flags())
	addLocks(c.Flags(), &f.locks)
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		names, err := namesOf(cmd, args, f.locks)
		if err != nil {
			return err
		}
		if err := f.lockFlags.check(); err != nil {
			return err
		}
		if err := x.check(cmd.Flags(), a.args); err != nil {
			return err
		}
		switch {
		case x.export:
			return a.export(names, f, x)
		case x.background:
			return a.background(names, f, x)
		}
		return a.hold(names, f)
	})
}

// namesOf are the locks of hold: one NAME, or those of -l.
func namesOf(cmd *cobra.Command, args, locks []string) ([]string, error) {
	if len(locks) == 0 {
		name, err := oneName(cmd, args)
		return []string{name}, err
	}
	if len(args) > 0 {
		return nil, exit.Usage("give all names by -l, or one as NAME: %s is without -l", view.Quote(args[0]))
	}
	return locks, checkNames(locks)
}

func (f *runFlags) holdNote() string { return cmp.Or(f.note, "hasp hold") }

// hold releases in every case in which it returns, and if it is killed, the store does: the lock
// cannot outlive the process at the other end of the caller's pipe.
func (a *app) hold(names []string, f *runFlags) error {
	f.onAsk = job.Reaction{Text: "ignore"}
	f.statusFD = -1 // the records are for a command's outcome; hold's own lines say all
	r, err := a.report(title(names), &f.storeFlags, &f.commandFlags)
	if err != nil {
		return err
	}
	// Check this before waiting; every other read error shows at the read.
	if info, err := a.stdin.Stat(); err == nil && info.IsDir() {
		return r.done(record{}, unreadable(syscall.EISDIR))
	}
	ctx, stop := interruptible()
	defer stop()
	client, held, err := a.get(ctx, names, f.holdNote(), f, r, nil)
	if err != nil {
		return r.done(record{}, exit.Of(err))
	}
	defer client.Close()

	held.numbered = len(f.locks) > 0
	// The reader of the line may take its time, but hasp reacts at once to the end of the input, to
	// a signal and to a loss. If the line cannot be written, no reader knows of the lock: it is
	// released below.
	out := a.output(a.stdout, r.gapRecord)
	a.stdout = out
	if err = a.printJSON(r.describe("held", held)); err == nil {
		err = a.holdUntil(ctx, held, r, out)
	}
	err = cmp.Or(err, giveBack(held))
	if perr := out.Err(); err == nil && perr != nil {
		err = notPrinted(perr)
	}
	if err != nil {
		return r.done(record{}, exit.Of(err))
	}
	return r.done(record{}, nil)
}

// holdUntil returns nil when the lock is to be released, and the loss otherwise.
func (a *app) holdUntil(ctx context.Context, l *commandLease, r *reporter, out *output.Writer) error {
	ended := make(chan error, 1)
	go func() {
		// Ends with the process: a read cannot be interrupted.
		_, err := io.Copy(io.Discard, a.stdin)
		ended <- err
	}()
	select {
	case err := <-ended:
		// An error is not the end of the input: the writer has not closed the pipe to say that it
		// is done.
		if err != nil {
			return unreadable(err)
		}
	case <-ctx.Done():
	case err := <-out.Failed:
		return notPrinted(err)
	case <-l.Context().Done():
		err := l.Err()
		rec := r.describe("lost", l)
		rec.Message = fmt.Sprint(err)
		_ = a.printJSON(rec) // the exit code says it, too
		return err
	}
	return nil
}

var errInput = errors.New("standard input cannot be read")

func unreadable(err error) *exit.Failure {
	return exit.Usage("%w: %v; hold needs one that stays open for as long as the lock is to be held", errInput, err)
}
