package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/cmd/hasp/internal/queues"
	"github.com/hasplock/hasp/cmd/hasp/internal/records"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

// topFlags are those of the verb top.
type topFlags struct {
	storeFlags
	every duration
	times int
	rows  int
}

func (a *app) topCommand() *cobra.Command {
	f := topFlags{every: duration{d: time.Second, min: 100 * time.Millisecond}}
	c := &cobra.Command{
		Use:   "top [flags] [PREFIX]",
		Short: "watch names, holders and queues",
		Long: `Show the locks that are held or waited for and begin with PREFIX, the longest
queue first, and look again every second; Ctrl-C ends it. SINCE and AGE are by the
owners' own clocks. Each look reads every queue once: give a PREFIX in a store with
thousands of names.

On a terminal each look takes the place of the one before, and an outage of the
store is said below it; elsewhere it ends hasp top. hasp who NAME shows a queue,
hasp release asks its holder or takes the lock away, and the page of hasp serve does
all of this in a browser.`,
	}
	fs := c.Flags()
	f.add(fs, "one JSON object per look and line")
	fs.Var(&f.every, "every", "how often to look")
	fs.IntVar(&f.times, "times", 0, "print so many looks (`N`), one below the other; default: go on")
	fs.IntVar(&f.rows, "rows", 20, "show at most `N` names")
	return a.verb(c, with(onePrefix, func(prefix string) error {
		if f.times < 0 || f.rows < 1 {
			return exit.Usage("--times cannot be negative, and --rows must be greater than zero")
		}
		return a.top(prefix, &f)
	}))
}

func (a *app) top(prefix string, f *topFlags) error {
	out, isFile := a.stdout.(*os.File)
	screen := !f.json && f.times == 0 && isFile && group.IsTerminal(out)
	return a.askingEach(&f.storeFlags, func(ctx context.Context, c *hasp.Client) error {
		for n := 1; ; n++ {
			l, err := takeLook(ctx, c, prefix)
			if n > 1 && f.times == 0 && ctx.Err() != nil {
				return nil // the user leaves it this way
			}
			if err == nil {
				err = a.show(l, f, screen)
			} else if screen && ctx.Err() == nil { // a person sees when the store is back
				a.tell(err.Error())
				err = nil
			}
			if err != nil || n == f.times {
				return err
			}
			if !sleep(ctx, f.every.d) && f.times > 0 {
				return ctx.Err()
			}
		}
	})
}

// show prints a look: below the one before, or on a terminal in its place.
func (a *app) show(l look, f *topFlags, screen bool) error {
	if f.json {
		return a.printJSON(l)
	}
	var b strings.Builder
	if screen {
		b.WriteString("\x1b[H\x1b[2J")
	}
	fmt.Fprintf(&b, "%s  %s  %d names, %d hold, %d wait\n\n", l.Time.Format("15:04:05"), l.Store, l.Names, l.Held, l.Waits)
	t := view.NewTable("NAME", "HOLDER", "SINCE", "AGE", "WAITING")
	for _, q := range l.queues[:min(f.rows, len(l.queues))] {
		t.Row(listRow(q, l.Time)...)
	}
	b.WriteString(t.String())
	if more := len(l.queues) - f.rows; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return a.print("%s", b.String())
}

// look is the state of the names, as hasp top --json prints it.
type look struct {
	Time  time.Time       `json:"time"`
	Store string          `json:"store"`
	Names int             `json:"names"`
	Held  int             `json:"held"`
	Waits int             `json:"waiting"`
	Locks []records.Queue `json:"locks"` // the longest queue first

	queues []hasp.Queue // the same
}

// takeLook asks for every queue once.
func takeLook(ctx context.Context, c *hasp.Client, prefix string) (l look, err error) {
	l = look{Time: time.Now(), Store: c.Store()}
	l.queues, err = queues.All(ctx, c, prefix, answerBound)
	l.Names = len(l.queues)
	for _, q := range l.queues {
		l.Held += len(q.Holders)
		l.Waits += len(q.Waiters)
	}
	slices.SortStableFunc(l.queues, func(a, b hasp.Queue) int { return cmp.Compare(len(b.Waiters), len(a.Waiters)) })
	l.Locks = make([]records.Queue, len(l.queues)) // in JSON [], not null
	for i, q := range l.queues {
		l.Locks[i] = records.Of(q)
	}
	return l, err
}
