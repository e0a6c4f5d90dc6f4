package cli

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/spf13/cobra"
)

// heldLine and lostLine are the lines that hold prints.
type heldLine struct {
	Event    string     `json:"event"` // held
	Name     string     `json:"name"`
	Store    string     `json:"store"`
	Token    uint64     `json:"token,omitempty"`
	Holder   string     `json:"holder"`
	Deadline *time.Time `json:"deadline,omitempty"`
}

type lostLine struct {
	Event  string `json:"event"` // lost
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

func (a *app) holdCommand() *cobra.Command {
	f, x := &runFlags{}, &exportFlags{}
	c := &cobra.Command{
		Use:   "hold [flags] NAME",
		Short: "hold a lock without running a command",
		Long: `Wait for the lock NAME, print one line of JSON when it is held, and hold it until
standard input ends or INT, TERM, HUP or QUIT comes (exit code 0). If the lock is
lost, print a line that says so and exit with 76. For programs that talk to hasp
through a pipe: closing it, or dying, releases the lock.

Under cron or as a service standard input ends at once; give it one that does not.

` + exportManual,
		Example: "  coproc hasp hold deploy; read -u ${COPROC[0]}; ...; exec {COPROC[1]}>&-\n" +
			"  eval \"$(hasp hold --export deploy)\"; ./build; hasp release --mine",
	}
	f.storeFlags.add(c.Flags(), "tell failures as JSON on standard error, too; standard output is JSON in any case")
	f.lockFlags.add(c.Flags())
	f.lockFlags.addWaiting(c.Flags())
	x.add(c.Flags())
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		name, err := oneName(cmd, args)
		if err != nil {
			return err
		}
		if err := f.lockFlags.check(); err != nil {
			return err
		}
		if err := x.check(cmd.Flags(), a.args); err != nil {
			return err
		}
		if x.export {
			return a.export(name, f, x)
		}
		return a.hold(name, f)
	})
}

// hold releases in every case in which it returns, and if it is killed, the store does: the lock
// cannot outlive the process at the other end of the caller's pipe.
func (a *app) hold(name string, f *runFlags) error {
	f.onAsk = reaction{text: "ignore"}
	f.statusFD = -1 // the records are for a command's outcome; hold's own lines say all
	r, err := a.report(name, &f.storeFlags, &f.commandFlags)
	if err != nil {
		return err
	}
	// Check this before waiting; every other read error shows at the read.
	if info, err := a.stdin.Stat(); err == nil && info.IsDir() {
		return r.done(record{}, unreadable(syscall.EISDIR))
	}
	ctx, stop := interruptible()
	defer stop()
	note := f.note
	if note == "" {
		note = "hasp hold"
	}
	client, held, err := a.get(ctx, []string{name}, note, f, r, nil)
	if err != nil {
		return r.done(record{}, fail(err))
	}
	defer client.Close()

	lease := held.only()
	line := heldLine{Event: "held", Name: name, Store: r.store, Token: lease.Token(), Holder: lease.ID()}
	if d := lease.Deadline(); !d.IsZero() {
		line.Deadline = &d
	}
	// The reader of the line may take its time, but hasp reacts at once to the end of the input, to
	// a signal and to a loss. If the line cannot be written, no reader knows of the lock: it is
	// released below.
	out := a.outlet(a.stdout, r.gapRecord)
	a.stdout = out
	if err = a.printJSON(line); err == nil {
		err = a.holdUntil(ctx, lease, out)
	}
	rctx, cancel := context.WithTimeout(context.Background(), releaseBound)
	defer cancel()
	if rerr := lease.Release(rctx); err == nil {
		err = rerr
	}
	if perr := out.err(); err == nil && perr != nil {
		err = notPrinted(perr)
	}
	if err != nil {
		return r.done(record{}, fail(err))
	}
	return r.done(record{}, nil)
}

// holdUntil returns nil when the lock is to be released, and the loss otherwise.
func (a *app) holdUntil(ctx context.Context, l *hasp.Lease, out *outlet) error {
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
	case err := <-out.failed:
		return notPrinted(err)
	case <-l.Lost():
		err := l.Err()
		_ = a.printJSON(lostLine{Event: "lost", Name: l.Name(), Reason: fmt.Sprint(err)}) // the exit code says it, too
		return err
	}
	return nil
}

func unreadable(err error) *failure {
	return usage("standard input cannot be read: %v; hold needs one that stays open for as long as the lock is to be held", err)
}
