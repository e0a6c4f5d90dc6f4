package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/cmd/hasp/internal/queues"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

// releaseFlags are those of the verb release.
type releaseFlags struct {
	storeFlags
	mineFlags
	force                bool
	holder, host, reason string
	wait                 duration
}

// releaseLine is the output of release --json.
type releaseLine struct {
	Event  string      `json:"event"` // "evicted" or "released"
	Time   time.Time   `json:"time"`
	Name   string      `json:"name"`
	Store  string      `json:"store"`
	Holder string      `json:"holder,omitempty"`
	Owner  *hasp.Owner `json:"owner,omitempty"`
	Reason string      `json:"reason"`
}

const releaseLong = `Ask the holder of the lock NAME to give it up, and wait until it has. Programs
that use the library get the request and the reason if they asked for that
(Revocable); hasp run and hasp elect say it on standard error, and do with the
command what --on-ask says; no holder is forced to comply. A line says whether the
holder listens. The request waits in the queue like a waiter, and keeps its place.

With --force, remove the holder or waiter with the id --holder, as shown by
hasp who. The next in the queue gets the lock, with a higher fencing token. The
old holder learns of it as soon as its store can report it, at the latest at its
next renewal; until then it believes that it holds the lock. So two may be at work
for that long, unless the resource checks tokens: stop the old holder first if you
can. The store keeps the reason where that is possible, and hasp who shows it. A
store that cannot take a lock away says so (exit code 78).

With --force --host, remove all holders and waiters on that host, whose machine is
gone; with PREFIX, only those of names that begin with it. hasp ls --host shows what
it holds. A name that fails does not keep the others, and gives the exit code.

With --mine, give back what hasp hold --export holds for this shell, or --background
for a process above it.`

func (a *app) releaseCommand() *cobra.Command {
	var f releaseFlags
	c := &cobra.Command{
		Use:   "release [flags] NAME | --mine [NAME...] | --force --host HOST [PREFIX]",
		Short: "ask a holder to give a lock up, or take it away",
		Long:  releaseLong,
		Example: `  hasp release deploy --reason "hotfix, please" --wait 1m
  hasp release --mine
  hasp release --force deploy --holder 3kzq-1 --reason "web-3 is dead"
  hasp release --force --host web-3 --reason "web-3 is gone"`,
	}
	fs := c.Flags()
	f.storeFlags.add(fs, "print the result as a JSON object")
	fs.BoolVar(&f.force, "force", false, "remove the entry with the id --holder, or all of --host")
	fs.StringVar(&f.holder, "holder", "", "the `ID` of the entry to remove")
	fs.StringVar(&f.host, "host", "", "with --force: remove all entries of this `HOST`, as who shows it")
	fs.StringVar(&f.reason, "reason", "", "why (`TEXT`), for the holder and for the record; required")
	fs.VarP(&f.wait, "wait", "w", "wait at most so long for the holder to comply (default: as long as it takes)")
	f.mineFlags.add(fs, "give back what hasp hold holds in the background for this shell: the locks of the NAMEs, or all; a place in a queue is given up")
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		if f.mine {
			return a.mineOf(cmd, args, hold.AskRelease, &f.mineFlags, f.json, 0)
		}
		nameOrPrefix := oneName
		if f.host != "" {
			nameOrPrefix = onePrefix
		}
		name, err := nameOrPrefix(cmd, args)
		if err == nil {
			err = f.check()
		}
		switch {
		case err != nil:
			return err
		case f.host != "" && len(args) > 0 && name == "":
			return exit.Usage("the prefix is empty: leave it out if all names are meant")
		case f.host != "":
			return a.evictHost(name, &f)
		case f.force:
			return a.evict(name, &f)
		}
		return a.askHolder(name, &f)
	})
}

func (f *releaseFlags) check() error {
	switch {
	case f.pid != 0:
		return exit.Usage("--pid goes with --mine")
	case f.reason == "" && f.force:
		return exit.Usage("--reason is required: it tells others later why the lock was taken away")
	case f.reason == "":
		return exit.Usage("--reason is required: the holder decides by it whether to give the lock up (a lock of this shell: --mine)")
	case f.host != "" && (!f.force || f.holder != ""):
		return exit.Usage("--host goes with --force, and without --holder: it removes all entries of that host")
	case f.force && f.holder == "" && f.host == "":
		return exit.Usage("--force needs --holder: the id that hasp who shows, so that no other entry is removed; or --host, for all entries of a host")
	case !f.force && f.holder != "":
		return exit.Usage("--holder goes with --force: a request is for every holder of the lock")
	case f.force && f.wait.set:
		return exit.Usage("--force does not wait")
	}
	return checkText("--reason", f.reason)
}

func (a *app) evict(name string, f *releaseFlags) error {
	return a.asking(&f.storeFlags, func(ctx context.Context, c *hasp.Client) error {
		q, err := c.Inspect(ctx, name)
		if err != nil {
			return err
		}
		all := append(q.Holders, q.Waiters...)
		i := slices.IndexFunc(all, func(e hasp.Entry) bool { return e.ID == f.holder })
		if i < 0 {
			return exit.Usage("%q has no entry with the id %q%s; see: hasp who %s", view.Clean(name), view.Clean(f.holder), at(c), view.Clean(name))
		}
		err = a.evictEntry(ctx, c, name, all[i], f)
		if errors.Is(err, hasp.ErrNotFound) {
			return exit.Usage("%q: the entry %q has just gone by itself", view.Clean(name), view.Clean(f.holder))
		}
		return err
	})
}

func (a *app) evictEntry(ctx context.Context, c *hasp.Client, name string, e hasp.Entry, f *releaseFlags) error {
	if err := c.Evict(ctx, name, e.ID, f.reason); err != nil {
		return err
	}
	a.tell(fmt.Sprintf("took %q from %s%s: %s", view.Clean(name), view.Owner(e.Owner), view.CommaToken(e.Token), view.Clean(f.reason)))
	return a.printRelease(c, f, releaseLine{Event: "evicted", Name: name, Holder: e.ID, Owner: &e.Owner})
}

// evictHost takes away all that the clients of a host hold and wait for. A name that fails does not
// keep the others; a store that does not answer ends it.
func (a *app) evictHost(prefix string, f *releaseFlags) error {
	return a.askingEach(&f.storeFlags, func(ctx context.Context, c *hasp.Client) error {
		names, err := queues.Names(ctx, c, prefix, answerBound)
		if err != nil {
			return err
		}
		taken, failed := 0, []error(nil)
		for _, name := range names {
			n, err := a.evictHostFrom(ctx, c, name, f)
			if taken += n; err != nil {
				failed = append(failed, err)
				a.tell(exit.Within(err).Error())
			}
			if ctx.Err() != nil || err != nil && exit.Of(err).Code == exit.CodeUnreachable {
				break
			}
		}
		a.tell(fmt.Sprintf("entries of the host %q removed%s: %d", view.Clean(f.host), at(c), taken))
		if failed != nil {
			return fmt.Errorf("%d of %d names failed: %w", len(failed), len(names), exit.Within(failed[0]))
		}
		return nil
	})
}

// evictHostFrom removes a host's entries from one queue, the last of them first: none that waits gets
// the lock from one that is removed.
func (a *app) evictHostFrom(ctx context.Context, c *hasp.Client, name string, f *releaseFlags) (taken int, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	q, err := c.Inspect(ctx, name)
	for _, e := range slices.Backward(append(q.Holders, q.Waiters...)) {
		if err != nil || e.Owner.Host != f.host {
			continue
		}
		if err = a.evictEntry(ctx, c, name, e, f); err == nil {
			taken++
		} else if errors.Is(err, hasp.ErrNotFound) {
			err = nil // it has gone by itself
		}
	}
	return taken, err
}

func (a *app) printRelease(c *hasp.Client, f *releaseFlags, l releaseLine) error {
	if !f.json {
		return nil
	}
	l.Time, l.Store, l.Reason = time.Now(), c.Store(), f.reason
	return a.printJSON(l)
}

// askHolder waits in the queue with the request until all present holders have gone. It takes
// nothing then.
func (a *app) askHolder(name string, f *releaseFlags) error {
	ctx, stop := interruptible()
	defer stop()
	client, until, err := a.openWaiting(ctx, &f.storeFlags, f.wait)
	if err != nil {
		return err
	}
	defer client.Close()
	q, err := client.Inspect(ctx, name)
	if err != nil {
		return exit.Of(interruption(ctx, err))
	}
	if len(q.Holders)+len(q.Waiters) == 0 {
		a.tell(fmt.Sprintf("%q is free%s", view.Clean(name), at(client)))
		return a.printRelease(client, f, releaseLine{Event: "released", Name: name})
	}
	wctx, cancel := waitUntil(ctx, until)
	defer cancel()
	a.tell("asking: " + view.HeldBy(q, isMe, time.Now()))
	if len(q.Holders) > 0 {
		a.tell(listening(q, client.Traits().FIFO))
	}
	note := strings.ToValidUTF8(f.reason[:min(len(f.reason), 100)], "") // no half of a character
	lease, err := queues.Lock(wctx, client, q, hasp.AskHolder(f.reason), hasp.Note("release: "+note))
	switch {
	case err != nil && context.Cause(wctx) == errWaitOver:
		return &exit.Failure{Code: exit.CodeBusy, Outcome: exit.OutcomeBusy, Err: fmt.Errorf("busy: %s; it did not comply within %s", view.HeldBy(q, isMe, time.Now()), f.wait.d)}
	case err != nil:
		return exit.Of(interruption(ctx, err))
	}
	if err := lease.Release(ctx); err != nil {
		return exit.Of(interruption(ctx, err))
	}
	return a.printRelease(client, f, releaseLine{Event: "released", Name: name})
}

// listening says whether the holders are told of a request, which stands in a queue, and what remains
// if they do not comply.
func listening(q hasp.Queue, queue bool) string {
	deaf := slices.DeleteFunc(slices.Clone(q.Holders), func(h hasp.Entry) bool { return h.Owner.Listens })
	h := q.Holders[0]
	force := fmt.Sprintf("; to take the lock away: hasp release --force --holder %s --reason WHY %s", view.Clean(h.ID), view.Clean(q.Name))
	switch {
	case !queue: // and the lock itself refuses
		return "this store has no place for a request" + force
	case len(deaf) == 0:
		return "the holder listens to requests, and decides" + force
	case len(deaf) < len(q.Holders):
		return fmt.Sprintf("%d of %d holders listen to requests", len(q.Holders)-len(deaf), len(q.Holders)) + force
	}
	return "the holder does not listen to requests, so this waits until it is done" + force
}
