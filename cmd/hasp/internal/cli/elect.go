package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/manual"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
	"github.com/spf13/cobra"
)

type electFlags struct {
	storeFlags
	trustFlags
	commandFlags
	value   string
	observe bool
	once    bool
}

func (a *app) electCommand() *cobra.Command {
	f := &electFlags{}
	c := &cobra.Command{
		Use:   "elect [flags] NAME -- CMD [ARGS...]",
		Short: "run a command while leader, or follow who leads",
		Long: `Stand for election NAME, run CMD while this process leads, and campaign again, at
the end of the queue, when CMD ends or the lead is lost. A signal that asks to end
(INT, TERM, HUP, QUIT) goes to CMD and ends the campaigning, with exit code 0 if
CMD does not outlast it.

With --observe NAME run nothing: print the present leader, and a line at every
change, until a signal comes. With --once print the present leader and end; exit
code 1 if there is none.

` + manual.Elect,
		Annotations: map[string]string{mostNeeded: "value observe once ttl on-lost kill-after json store verbose help", othersIn: "hasp run"},
		Example:     "  hasp elect --value $(hostname):8080 scheduler -- ./scheduler\n  hasp elect --observe scheduler",
	}
	fs := c.Flags()
	f.storeFlags.add(fs, "tell what happens as JSON on standard error; with --observe on standard output")
	f.trustFlags.add(fs)
	f.commandFlags.add(fs)
	fs.StringVar(&f.value, "value", "", "what the leader publishes, its address say (`TEXT`, at most 1024 bytes)")
	fs.BoolVar(&f.observe, "observe", false, "follow the leader instead of running")
	fs.BoolVar(&f.once, "once", false, "with --observe: say who leads now, and end")
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		if f.once && !f.observe {
			return exit.Usage("--once goes with --observe")
		}
		observe := a.observe
		if f.once {
			observe = a.observeOnce
		}
		if f.observe {
			return with(oneName, func(name string) error { return observe(name, &f.storeFlags) })(cmd, args)
		}
		return a.elect(cmd, args, f)
	})
}

func (a *app) elect(cmd *cobra.Command, args []string, f *electFlags) error {
	if len(f.value) > 1024 {
		return exit.Usage("--value must be at most 1024 bytes")
	}
	if err := checkText("--note", f.note); err != nil {
		return err
	}
	e, err := a.prepare(cmd, args, nil, false, &f.storeFlags, &f.commandFlags)
	if err != nil {
		return err
	}
	r := e.report
	sigs := signals.Catch()
	defer sigs.Close()
	ctx, stop := sigs.Until(context.Background())
	client, err := a.openAlways(ctx, &f.storeFlags, r.trying, append(f.trustFlags.options(), hasp.WithObserver(r))...)
	if in := stop(); in != nil && err == nil {
		client.Close()
		err = in
	}
	if err != nil {
		return r.done(record{}, asked(exit.Of(err)))
	}
	defer client.Close()
	r.store = client.Store()
	c := &candidate{app: a, client: client, flags: f, plannedRun: e, signals: sigs}
	return c.campaign()
}

// candidate campaigns, leads and campaigns again.
type candidate struct {
	*plannedRun
	app     *app
	client  *hasp.Client
	flags   *electFlags
	signals *signals.Signals
	pause   time.Duration // before the next campaign
}

const (
	// A command that fails at once must not make the candidates take turns as fast as they can. If
	// it has run for a while, the next campaign begins at once.
	pauseFirst = 500 * time.Millisecond
	pauseMost  = 30 * time.Second
	ranWell    = 10 * time.Second
)

// campaign returns when a signal asks to end, or when campaigning is pointless.
func (c *candidate) campaign() error {
	r := c.report
	for {
		r.began, r.acquired = time.Now(), time.Time{}
		// A new channel for each term: a request for the last term must not end the next.
		requests := asks()
		opts := c.flags.whenAsked(c.client, requests)
		election := c.client.Election(r.name, append(opts, hasp.Note(cmp.Or(c.flags.note, noteFor(c.argv))))...)
		term, err := c.win(election)
		if err == nil {
			var again bool
			if again, err = c.lead(term, requests); !again {
				return err
			}
		} else if isTransient(&c.flags.storeFlags, err) {
			// A candidate is a service: it outlasts an outage, a full disk and a failover, also at
			// its start. A user who has mistyped the address reads it here.
			r.trying(err)
		} else {
			return r.done(record{}, asked(exit.Of(err)))
		}
		if err := c.rest(); err != nil {
			return r.done(record{}, asked(exit.Of(err)))
		}
	}
}

// asked has a candidate whom a signal asked to end, before its command or with it, exit with 0, as
// hasp serve and hasp hold do: it is a service, and systemd calls a unit failed that exits with 143.
// flock dies of the signal, which no program with something to clean up can. What the command makes
// of the signal stays: its exit code, or that it had to be killed.
func asked(f *exit.Failure) *exit.Failure {
	if f == nil || f.Outcome == exit.OutcomeSignaled && slices.Contains(signals.End, os.Signal(syscall.Signal(f.Code-exit.CodeSignal))) {
		return nil
	}
	if f.Outcome == exit.OutcomeInterrupted {
		f.Code = exit.CodeOK
	}
	return f
}

// lead runs the command for a term. again says that this candidate continues.
func (c *candidate) lead(term *hasp.Term, requests <-chan hasp.Owner) (again bool, err error) {
	r := c.report
	held := leaseOf(term.Lease)
	r.held(held)
	r.say("leading %q%s", r.name, view.Token(term.Token()))
	env := c.app.commandEnv(held, c.client, &c.flags.store, c.flags.passCredentials, true, r)
	t := c.task(c.client, held, env, &c.flags.commandFlags, c.signals, requests)
	end := t.Run()
	settle(&end, held, r, t.Explain)
	// A command that cannot even be started will fail the next time, too; but a lead that was lost
	// before the command began is an ordinary loss.
	if end.Ended || end.NotStarted != nil && !errors.Is(end.NotStarted, hasp.ErrLost) {
		return false, r.done(recordOf(&end), asked(end.Failure()))
	}
	r.conclude("term", recordOf(&end), end.Failure())
	r.say("no longer leading %q after %s: %s", r.name, view.Brief(time.Since(r.acquired)), describeEnd(&end))
	return true, nil
}

// win waits until this candidate leads.
func (c *candidate) win(election *hasp.Election) (*hasp.Term, error) {
	ctx, stop := c.signals.Until(context.Background())
	var term *hasp.Term
	err := c.app.checkNested(ctx, c.client, c.report.name, false)
	if err == nil {
		term, err = election.Campaign(ctx, []byte(c.flags.value))
	}
	if in := stop(); in != nil {
		if err == nil {
			_ = giveBack(term.Lease) // nothing has begun under it; otherwise Close does it, and a silent store would hold up the end for a TTL
		}
		err = in
	}
	return term, err
}

// rest pauses after a term, longer each time the command does not last.
func (c *candidate) rest() error {
	if a := c.report.acquired; !a.IsZero() && time.Since(a) > ranWell {
		c.pause = 0
		return nil
	}
	c.pause = min(max(2*c.pause, pauseFirst), pauseMost)
	ctx, stop := c.signals.Until(context.Background())
	sleep(ctx, c.pause)
	return stop()
}

func describeEnd(end *job.Ending) string {
	f := end.Failure()
	switch {
	case f == nil:
		return "the command has ended with exit code 0"
	case f.Err != nil:
		return f.Error()
	case end.Status.Signal != 0:
		return "the command was killed by " + signals.Name(end.Status.Signal)
	}
	return fmt.Sprintf("the command has ended with exit code %d", end.Status.Code)
}
