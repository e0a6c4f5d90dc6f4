package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/cmd/hasp/internal/queues"
	"github.com/hasplock/hasp/cmd/hasp/internal/records"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

func (a *app) lsCommand() *cobra.Command {
	var f storeFlags
	var only holderFilter
	c := &cobra.Command{
		Use:   "ls [flags] [PREFIX]",
		Short: "list the locks that are held or waited for",
		Long: `List the names that begin with PREFIX and are held or waited for: who holds them,
since when (when that holder asked for it, by its own clock), and how many wait.

With --host, --user or --older-than only holders are shown that all of them fit, and
no names without one. Those of other libraries have no host, no user and mostly no
time. Waiters are not filtered.`,
	}
	f.add(c.Flags(), "one JSON object per name and line, as who prints it")
	c.Flags().StringVar(&only.host, "host", "", "only holders on this `HOST`, as who shows it")
	c.Flags().StringVar(&only.user, "user", "", "only holders of this `USER`")
	c.Flags().Var(&only.older, "older-than", "only holders that asked for the lock at least so long ago, by their own clocks")
	return a.verb(c, with(onePrefix, func(prefix string) error { return a.list(prefix, &f, only) }))
}

// holderFilter says which holders ls shows.
type holderFilter struct {
	host, user string
	older      duration
}

func (f holderFilter) leavesOut(e hasp.Entry) bool {
	return f.host != "" && e.Owner.Host != f.host || f.user != "" && e.Owner.User != f.user ||
		f.older.set && (e.Since.IsZero() || time.Since(e.Since) < f.older.d)
}

func (a *app) whoCommand() *cobra.Command {
	var f storeFlags
	var mine mineFlags
	var held bool
	var wait duration
	c := &cobra.Command{
		Use:   "who [flags] NAME",
		Short: "show the queue of a lock",
		Long: `Show who holds the lock NAME and who waits for it, in the order in which they
will be served. SINCE is when they asked for it, by their own clocks; EXPIRES in
how long the store removes the entry if it is not renewed, "-" where nothing
expires and where the store does not say it (etcd, ZooKeeper, redlock, the
formats of other libraries). On kube and s3 it is "looks over since" a time for a
holder that may be dead, by its own clock: who waits takes the lock when it has seen
that for the holder's TTL. TOKEN the fencing token of the grant, or of the one to
come, VALUE the text that a leader publishes (hasp elect --value).

With --held, the exit code says whether the lock is held: 0 if it is, 1 if not.

Of long notes and values the beginning is shown. With --json, a value is whole:
text where it is UTF-8, and otherwise base64, as value_base64.`,
	}
	f.add(c.Flags(), "as one JSON object: name, holders, waiters, store")
	mine.add(c.Flags(), "ask for the locks that hasp hold holds in the background for this shell, or those of the NAMEs; exit code 0 while they are held, 75 while one is waited for, 69 if the holder does not answer, 76 otherwise")
	c.Flags().VarP(&wait, "wait", "w", "with --mine: wait at most so long for those that are waited for")
	c.Flags().BoolVar(&held, "held", false, "exit with 1 if the lock is not held")
	one := with(oneName, func(name string) error { return a.who(name, &f, held) })
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		switch {
		case mine.mine:
			return a.mineOf(cmd, args, hold.AskState, &mine, f.json, wait.d)
		case mine.pid != 0 || slices.ContainsFunc(a.args, func(arg string) bool { return strings.HasPrefix(arg, "--wait") || arg == "-w" }):
			return exit.Usage("--pid and --wait go with --mine; hasp wait waits until a lock is free")
		}
		return one(cmd, args)
	})
}

// asking connects for a verb that asks and is done.
func (a *app) asking(f *storeFlags, do func(context.Context, *hasp.Client) error) error {
	return a.askingEach(f, func(ctx context.Context, c *hasp.Client) error {
		ctx, cancel := context.WithTimeout(ctx, answerBound)
		defer cancel()
		return do(ctx, c)
	})
}

// askingEach is for a verb that asks for each name. There may be any number, so that only each
// answer has its bound.
func (a *app) askingEach(f *storeFlags, do func(context.Context, *hasp.Client) error) error {
	ctx, stop := interruptible()
	defer stop()
	client, _, err := a.openOnce(ctx, f, duration{d: answerBound, set: true})
	if err != nil {
		return err
	}
	defer client.Close()
	if err := do(ctx, client); err != nil {
		return exit.Of(interruption(ctx, err))
	}
	return nil
}

// queueLine is a line that who and ls print with --json.
type queueLine struct {
	records.Queue
	Store string `json:"store"`
}

// at names the store of an answer. A message that a lock is free must say in which store: each user
// has a default store, and the lock may be held in another.
func at(c *hasp.Client) string { return " at " + view.Clean(c.Store()) }

func (a *app) list(prefix string, f *storeFlags, only holderFilter) error {
	return a.askingEach(f, func(ctx context.Context, c *hasp.Client) error {
		all, err := queues.All(ctx, c, prefix, answerBound)
		if err != nil {
			return err
		}
		nothing := "nothing is held or waited for"
		if only != (holderFilter{}) {
			nothing = "no holder fits"
			for i := range all {
				all[i].Holders = slices.DeleteFunc(all[i].Holders, only.leavesOut)
			}
			all = slices.DeleteFunc(all, func(q hasp.Queue) bool { return len(q.Holders) == 0 })
		}
		table := view.NewTable("NAME", "HOLDER", "SINCE", "AGE", "WAITING")
		for _, q := range all {
			table.Row(listRow(q, time.Now())...)
			if !f.json {
				continue
			}
			if err := a.printJSON(queueLine{records.Of(q), c.Store()}); err != nil {
				return err
			}
		}
		if len(all) == 0 {
			a.tell(nothing + at(c))
		} else if !f.json {
			a.tell(fmt.Sprintf("%d in use%s", len(all), at(c)))
		}
		if f.json {
			return nil
		}
		return a.print("%s", table)
	})
}

func listRow(q hasp.Queue, now time.Time) []string {
	holder, since, age := "-", "-", "-"
	if len(q.Holders) > 0 {
		h := q.Holders[0]
		holder = view.Owner(h.Owner)
		since, age = view.Asked(h, now)
		if n := len(q.Holders) - 1; n > 0 {
			holder += fmt.Sprintf(" and %d more", n)
		}
		if over := view.Over(h, now); over != "" {
			holder += ", " + over
		}
	}
	return []string{view.Clean(q.Name), holder, since, age, fmt.Sprint(len(q.Waiters))}
}

func (a *app) who(name string, f *storeFlags, held bool) error {
	return a.asking(f, func(ctx context.Context, c *hasp.Client) error {
		q, err := c.Inspect(ctx, name)
		if err != nil {
			return err
		}
		var no error
		if held && len(q.Holders) == 0 {
			no = &exit.Failure{Code: exit.CodeNo, Outcome: exit.OutcomeNo, Err: fmt.Errorf("%q is not held", view.Clean(name)), Told: true}
		}
		if f.json {
			return cmp.Or(a.printJSON(queueLine{records.Of(q), c.Store()}), no)
		}
		if q.Quarantine > 0 {
			a.tell(fmt.Sprintf("the store may have forgotten locks, and grants none for another %s%s", view.Brief(q.Quarantine), at(c)))
		}
		if len(q.Holders)+len(q.Waiters) == 0 {
			a.tell(fmt.Sprintf("%q is free%s", view.Clean(name), at(c)))
		} else if err := a.print("%s", whoTable(q, time.Now())); err != nil {
			return err
		}
		return cmp.Or(a.tellEviction(ctx, c, name), no)
	})
}

// tellEviction says who last took the lock away, on stores that keep it.
func (a *app) tellEviction(ctx context.Context, c *hasp.Client, name string) error {
	e, err := c.LastEviction(ctx, name)
	switch {
	case errors.Is(err, hasp.ErrUnsupported):
		return nil
	case err != nil || e == nil:
		return err
	}
	a.tell(fmt.Sprintf("last eviction: %s by %s at %s: %s", view.Clean(e.ID), view.Owner(e.By), view.Clock(e.At, time.Now()), view.Clean(e.Why)))
	return nil
}

func whoTable(q hasp.Queue, now time.Time) *view.Table {
	t := view.NewTable("POS", "STATE", "OWNER", "NOTE", "SINCE", "AGE", "EXPIRES", "TOKEN", "VALUE", "ID")
	position := 0
	add := func(state string, entries []hasp.Entry) {
		for _, e := range entries {
			position++
			note, owner := view.Clean(view.Short(e.Owner.Note)), e.Owner
			if owner.Note != "" {
				owner.Note, owner.Program = "", "" // it has a separate column
			} else {
				note = "-"
			}
			token := "-"
			if e.Token != 0 {
				token = fmt.Sprint(e.Token)
			}
			since, age := view.Asked(e, now)
			t.Row(fmt.Sprint(position), state+units(e), view.Owner(owner), note, since, age, expires(e, now), token, view.Short(valueText(e.Value)), view.Clean(e.ID))
		}
	}
	add("holds", q.Holders)
	add("waits", q.Waiters)
	return t
}

// units says how many permits an entry takes, unless it takes the whole lock.
func units(e hasp.Entry) string {
	switch {
	case e.Whole():
		return ""
	case e.Capacity == driver.Whole:
		return " shared"
	}
	return fmt.Sprintf(" %d of %d permits", e.Units, e.Capacity)
}

// expires says in how long the store removes an entry that is not renewed.
func expires(e hasp.Entry, now time.Time) string {
	switch {
	case !e.LooksOver.IsZero():
		return view.Over(e, now)
	case e.Expires.IsZero():
		return "-"
	}
	return "in " + view.Brief(e.Expires.Sub(now))
}

// valueText shows what an entry publishes.
func valueText(value []byte) string {
	switch {
	case len(value) == 0:
		return "-"
	case !utf8.Valid(value):
		return "base64:" + base64.StdEncoding.EncodeToString(value)
	}
	return view.Clean(string(value))
}
