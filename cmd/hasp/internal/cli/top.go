package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/cmd/hasp/internal/top"
	"github.com/spf13/cobra"
)

// topFlags are those of the verb top.
type topFlags struct {
	storeFlags
	every span
	times int
	rows  int
}

func (a *app) topCommand() *cobra.Command {
	f := topFlags{every: span{d: time.Second, min: 100 * time.Millisecond}}
	c := &cobra.Command{
		Use:   "top [flags] [PREFIX]",
		Short: "watch names, holders and queues live",
		Long: `Show the locks that are held or waited for and begin with PREFIX, and look again
every second. HOLD and WAIT are the longest of a name, since they were asked for,
by the owners' own clocks. CHANGES/S counts the changes of holder seen over the
last looks: several between two looks count as one. Each look reads every queue
once: give a PREFIX in a store with thousands of names.

KEYS
  ↑ ↓ j k    select; PgUp and PgDn by pages
  u w h n    sort by queue, longest wait, longest hold, name
  Enter      open the queue of the name: holders, waiters, how long they wait
  Esc        back to the names
  a          in a queue: ask its holders for the lock, with a reason, as
             hasp release does; again, to withdraw that
  e          in a queue: take the selected entry away, with a reason, as
             hasp release --force does
  q          leave; Ctrl-C, too

Without a terminal, with --times and with --json it prints one look after the
other. An outage of the store is shown on the screen, which goes on when it is
over; without a screen it ends hasp top.`,
	}
	fs := c.Flags()
	f.add(fs, "one JSON object per look and line")
	fs.Var(&f.every, "every", "how often to look")
	fs.IntVar(&f.times, "times", 0, "print so many looks (`N`), and no screen; default: go on")
	fs.IntVar(&f.rows, "rows", 20, "without the screen: show at most `N` names")
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 1:
			return usage("top takes at most one prefix: %s", cmd.UseLine())
		case f.times < 0 || f.rows < 1:
			return usage("--times cannot be negative, and --rows must be greater than zero")
		}
		return a.top(strings.Join(args, ""), &f)
	})
}

func (a *app) top(prefix string, f *topFlags) error {
	ctx, stop := interruptible()
	defer stop()
	client, err := a.open(ctx, &f.storeFlags)
	if err != nil {
		return err
	}
	defer client.Close()
	w := &top.Watch{Client: client, Prefix: prefix, Bound: answerBound}
	out, isFile := a.stdout.(*os.File)
	if !f.json && f.times == 0 && isFile && group.IsTerminal(out) && group.IsTerminal(a.stdin) {
		return a.topScreen(ctx, w, f, out)
	}
	for n := 1; ; n++ {
		l, err := w.Look(ctx)
		if err != nil {
			return fail(interruption(ctx, err))
		}
		if err := a.show(l, f); err != nil {
			return err
		}
		if n == f.times {
			return nil
		}
		select {
		case <-time.After(f.every.d):
		case <-ctx.Done():
			if f.times == 0 {
				return nil // the user leaves it this way
			}
			return fail(interruption(ctx, ctx.Err()))
		}
	}
}

// topScreen shows the screen. A signal leaves it, as q does.
func (a *app) topScreen(ctx context.Context, w *top.Watch, f *topFlags, out *os.File) error {
	err := top.Run(ctx, w, top.Options{
		Every: f.every.d, In: a.stdin, Out: out, Clean: clean,
		Ask: func(ctx context.Context, q hasp.Queue, reason string) error {
			lease, err := drain(ctx, w.Client, q, reason)
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		},
	})
	if err != nil && ctx.Err() == nil {
		return &failure{code: exitInternal, outcome: outcomeInternal, err: fmt.Errorf("the screen: %w", err)}
	}
	return nil
}

// show prints a look for scripts, and where there is no terminal.
func (a *app) show(l top.Look, f *topFlags) error {
	if f.json {
		return a.printJSON(l)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %d names, %d hold, %d wait\n\n", l.Time.Format("15:04:05"), l.Store, l.Names, l.Held, l.Waits)
	t := newTable("NAME", "HOLDER", "SINCE", "AGE", "WAITING", "CHANGES/S")
	for _, q := range l.Locks[:min(f.rows, len(l.Locks))] {
		t.row(append(listRow(q.Queue, l.Time), fmt.Sprintf("%.1f", q.Changes))...)
	}
	b.WriteString(t.String())
	if more := len(l.Locks) - f.rows; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return a.print("%s", b.String())
}
