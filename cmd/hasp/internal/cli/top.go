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
owners' own clocks. CHANGES/S counts the changes of holder seen over the last ten
seconds: several between two looks count as one. Each look reads every queue once:
give a PREFIX in a store with thousands of names.

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
	w := &watch{client: client, prefix: prefix, seen: holderChanges{}}
	out, isFile := a.stdout.(*os.File)
	screen := !f.json && f.times == 0 && isFile && group.IsTerminal(out)
	for n := 1; ; n++ {
		l, err := w.look(ctx)
		switch {
		case err == nil:
			err = a.show(l, f, screen)
		case screen && ctx.Err() == nil: // a person sees when the store is back
			a.tell(err.Error())
			err = nil
		default:
			err = fail(interruption(ctx, err))
		}
		if err != nil || n == f.times {
			return err
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
	t := view.NewTable("NAME", "HOLDER", "SINCE", "AGE", "WAITING", "CHANGES/S")
	for _, q := range l.Locks[:min(f.rows, len(l.Locks))] {
		t.Row(append(listRow(q.Queue, l.Time), fmt.Sprintf("%.1f", q.Changes))...)
	}
	b.WriteString(t.String())
	if more := len(l.Locks) - f.rows; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return a.print("%s", b.String())
}

// watch looks at the names that begin with a prefix.
type watch struct {
	client *hasp.Client
	prefix string
	seen   holderChanges
}

// look is the state of the names, as hasp top --json prints it.
type look struct {
	Time  time.Time    `json:"time"`
	Store string       `json:"store"`
	Names int          `json:"names"`
	Held  int          `json:"held"`
	Waits int          `json:"waiting"`
	Locks []lockOfLook `json:"locks"` // the longest queue first
}

type lockOfLook struct {
	hasp.Queue
	Changes float64 `json:"changes_per_second"` // of holder, as far as they were seen
}

// look asks for every queue once, so the answers are of different moments. Each request is bounded,
// and not the look: a store with thousands of names is not out of reach because a look takes long.
func (w *watch) look(ctx context.Context) (look, error) {
	l := look{Time: time.Now(), Store: w.client.Backend().String(), Locks: []lockOfLook{}}
	listing, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	var names []string
	for name, err := range w.client.Names(listing, w.prefix) {
		if err != nil {
			return l, err
		}
		names = append(names, name)
	}
	for _, name := range names {
		asking, cancel := context.WithTimeout(ctx, answerBound)
		q, err := w.client.Inspect(asking, name)
		cancel()
		switch {
		case err != nil:
			return l, err
		case len(q.Holders)+len(q.Waiters) == 0:
			continue // it has been released since
		}
		l.Names++
		l.Held += len(q.Holders)
		l.Waits += len(q.Waiters)
		l.Locks = append(l.Locks, lockOfLook{q, w.seen.note(q, l.Time)})
	}
	w.seen.forget(l.Time)
	slices.SortFunc(l.Locks, func(a, b lockOfLook) int {
		return cmp.Or(cmp.Compare(len(b.Waiters), len(a.Waiters)), cmp.Compare(b.Changes, a.Changes), cmp.Compare(a.Name, b.Name))
	})
	return l, nil
}

// holderChanges remembers the holder of each name at the last looks.
type holderChanges map[string]*heldAt

type heldAt struct {
	first   time.Time // of these looks
	last    time.Time
	holder  string
	changes []time.Time // the latest of them
}

// rateOver is the time over which changes are counted.
const rateOver = 10 * time.Second

// note adds a look at a name and returns its changes per second. A name that was free in between
// counts as a change.
func (h holderChanges) note(q hasp.Queue, now time.Time) float64 {
	holder := ""
	if len(q.Holders) > 0 {
		holder = q.Holders[0].ID
	}
	at := h[q.Name]
	if at == nil {
		h[q.Name] = &heldAt{first: now, last: now, holder: holder}
		return 0
	}
	if holder != at.holder {
		at.changes = append(at.changes, now)
	}
	at.holder, at.last = holder, now
	at.changes = slices.DeleteFunc(at.changes, func(t time.Time) bool { return now.Sub(t) > rateOver })
	over := min(now.Sub(at.first), rateOver)
	if over <= 0 {
		return 0
	}
	return float64(len(at.changes)) / over.Seconds()
}

// forget drops the names that have not been seen for a while.
func (h holderChanges) forget(now time.Time) {
	for name, at := range h {
		if now.Sub(at.last) > rateOver {
			delete(h, name)
		}
	}
}
