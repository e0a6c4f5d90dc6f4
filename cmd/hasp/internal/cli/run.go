package cli

import (
	"cmp"
	"context"
	"errors"
	"path"
	"strconv"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/manual"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
	"github.com/spf13/cobra"
)

// runFlags are those of run and try.
type runFlags struct {
	storeFlags
	lockFlags
	holdFlags
	commandFlags
	choiceFlags
	locks []string
}

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	c := &cobra.Command{
		Use:         "run [flags] NAME -- CMD [ARGS...]",
		Short:       "wait for a lock, run a command under it, release it",
		Long:        "Wait for the lock NAME, first come, first served, run CMD, and release the lock\nwhen CMD and everything it started in its process group has ended.\n\n" + manual.Run,
		Annotations: map[string]string{mostNeeded: "wait no-wait skip-ok lock any shared permits max-hold store verbose"},
		Example: "  hasp run nightly-report -- ./report.sh\n" +
			"  hasp run --wait 30s deploy -- make deploy\n" +
			"  hasp run --skip-ok backup -- pg_dump -f /backup/db.sql   # from cron\n" +
			"  hasp run -l accounts -l stock -- ./move.sh\n" +
			"  hasp run --any gpu0 gpu1 gpu2 -- ./train.sh",
	}
	f.add(c)
	f.lockFlags.addWaiting(c.Flags())
	return a.verb(c, func(cmd *cobra.Command, args []string) error { return a.runUnderLock(cmd, args, f) })
}

func (a *app) tryCommand() *cobra.Command {
	f := &runFlags{}
	c := &cobra.Command{
		Use:         "try [flags] NAME -- CMD [ARGS...]",
		Short:       "run a command if its lock is free",
		Long:        "Run CMD under the lock NAME if the lock is free at this moment, and do not wait\nfor it otherwise: run --no-wait. hasp run --help says how the command runs, and\nhas all flags; --wait and --no-wait are not for try.",
		Annotations: map[string]string{mostNeeded: "skip-ok lock any shared permits max-hold store verbose", othersIn: "hasp run"},
		Example:     "  hasp try --skip-ok poll-feed -- ./poll.sh",
	}
	f.add(c)
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		f.noWait = true
		return a.runUnderLock(cmd, args, f)
	})
}

func (f *runFlags) add(c *cobra.Command) {
	f.storeFlags.add(c.Flags(), "tell what happens as JSON on standard error, one object per line")
	f.lockFlags.add(c.Flags())
	f.holdFlags.add(c.Flags())
	f.commandFlags.add(c.Flags())
	addLocks(c.Flags(), &f.locks)
	f.choiceFlags.add(c.Flags())
}

// plannedRun holds what a verb that runs a command knows before it asks for the lock.
type plannedRun struct {
	names  []string
	argv   []string
	path   string
	report *reporter
}

// prepare checks what can be checked without the store. That includes finding the command.
func (a *app) prepare(cmd *cobra.Command, args, locks []string, anyOf bool, sf *storeFlags, cf *commandFlags) (*plannedRun, error) {
	names, argv, err := a.namesAndCommand(cmd, args, locks, anyOf)
	if err != nil {
		return nil, err
	}
	r, err := a.report(title(names), sf, cf)
	if err != nil {
		return nil, err
	}
	path, err := job.Find(argv[0], cf.waitDaemons)
	if err != nil {
		return nil, r.done(record{}, exit.Of(err))
	}
	return &plannedRun{names, argv, path, r}, nil
}

// task is the command under the lock.
func (p *plannedRun) task(c *hasp.Client, held *commandLease, env []string, f *commandFlags, sigs *signals.Signals, requests <-chan hasp.Owner) *job.Task {
	r := p.report
	return &job.Task{
		Path: p.path, Argv: p.argv, Env: env, WaitDaemons: f.waitDaemons,
		Lock: held, Name: r.name, Store: r.store, Acquired: r.acquired,
		KillAfter: f.killAfter.d, OnLost: f.onLost, OnAsk: f.onAsk, Signals: sigs.C, Requests: requests,
		Explain: func(lost error) error { return explainLoss(c, held, lost) },
		Say:     r.say, Detail: r.detail,
		Event: func(name, message string, by *hasp.Owner) { r.write(record{Event: name, Message: message, By: by}) },
	}
}

func (a *app) runUnderLock(cmd *cobra.Command, args []string, f *runFlags) error {
	if f.skipOK && !f.wait.set {
		f.noWait = true // to queue up and then run it again is not to skip it
	}
	parent := context.Background()
	if f.withParent {
		parent = signals.WhileParent()
	}
	if err := errors.Join(f.lockFlags.check(), f.choiceFlags.check(cmd.Flags(), &f.lockFlags, f.locks), f.holdFlags.check(cmd.Flags())); err != nil {
		return err
	}
	e, err := a.prepare(cmd, args, f.locks, f.any, &f.storeFlags, &f.commandFlags)
	if err != nil {
		return err
	}
	r := e.report
	if f.slots > 0 {
		f.any = true
		if e.names, err = slotNames(e.names[0], f.slots); err != nil {
			return r.done(record{}, exit.Of(err))
		}
	}
	r.choosing = f.any
	if (f.skipOK || f.minHold.set) && f.store.Assumed && !a.settings.Configured() {
		r.say("no store is named: this locks among the processes of this user on this machine alone, in %s; name one for all machines (HASP_STORE, or store in %s)", f.store.String(), settings.SystemFile)
	}
	sigs := signals.Catch()
	defer sigs.Close()
	ctx, stopWaiting := sigs.Until(parent)
	requests := asks()
	client, held, err := a.get(ctx, e.names, cmp.Or(f.note, noteFor(e.argv)), f, r, requests)
	if in := cmp.Or(stopWaiting(), context.Cause(parent)); in != nil && err == nil {
		client.Close() // releases: nothing has begun under the lock
		err = in
	}
	if err != nil {
		return r.done(record{}, f.notAcquired(err, a.tty))
	}
	defer client.Close()
	held.numbered = len(f.locks) > 0
	if f.slots > 0 {
		held.slot, _ = strconv.Atoi(path.Base(held.only().Name())) // slotNames made it
	}
	t := e.task(client, held, a.commandEnv(held, client, &f.store, f.passCredentials, f.exclusive(), r), &f.commandFlags, sigs, requests)
	t.MaxHold, t.Orphaned = f.maxHold.d, parent.Done()
	end := t.Run()
	// From here on the group is gone and nothing runs under the lock.
	if !end.Ended { // by a signal, which the command got
		lingerUntil(parent, r.acquired.Add(f.minHold.d), held, sigs)
	}
	settle(&end, held, r, t.Explain)
	return r.done(recordOf(&end), end.Failure())
}

// notAcquired is the failure to get the lock, by the flags for a busy one.
func (f *runFlags) notAcquired(err error, tty bool) *exit.Failure {
	failed := exit.Of(err)
	if failed.Outcome == exit.OutcomeBusy || failed.Outcome == exit.OutcomeUncertain && !f.skipOK {
		failed.Code, failed.Told = f.busyCode, f.skipOK && !tty && !f.verbose // cron would send a mail
	}
	return failed
}

// get connects and acquires. On success the caller closes the client. --wait covers both: a store
// that starts after us, and one that answers but grants nothing yet, a replica before its promotion
// say.
func (a *app) get(ctx context.Context, names []string, note string, f *runFlags, r *reporter, requests chan<- hasp.Owner) (client *hasp.Client, held *commandLease, err error) {
	most := f.most()
	err = a.persist(ctx, &f.storeFlags, most.d, r.trying, func(left time.Duration) error {
		client, held, err = a.getOnce(ctx, names, note, duration{d: left, set: most.set}, f, r, requests)
		return err
	})
	return client, held, err
}

// getOnce is an attempt of get. On failure nothing is left open, and what the library may have left
// in the store it removes while closing.
func (a *app) getOnce(ctx context.Context, names []string, note string, most duration, f *runFlags, r *reporter, requests chan<- hasp.Owner) (*hasp.Client, *commandLease, error) {
	q, err := a.attempt(ctx, names, note, most, f, r, requests)
	if err != nil {
		return nil, nil, err
	}
	held, err := q.run(ctx)
	if err != nil {
		if q.silent {
			closeSoon(q.client)
		} else {
			q.client.Close()
		}
		return nil, nil, err
	}
	return q.client, held, nil
}

// attempt opens the store for an attempt.
func (a *app) attempt(ctx context.Context, names []string, note string, most duration, f *runFlags, r *reporter, requests chan<- hasp.Owner) (*acquisition, error) {
	client, until, err := a.openOnce(ctx, &f.storeFlags, most, append(f.trustFlags.options(), hasp.WithObserver(r))...)
	if err != nil {
		return nil, err
	}
	r.store = client.Store()
	r.detail("the store is %s", r.store)
	return &acquisition{app: a, client: client, flags: &f.lockFlags, any: f.any, outlast: f.skipOK, until: until, names: names, note: note, opts: f.whenAsked(client, requests), report: r}, nil
}

// lingerUntil keeps the lock after the command, for --min-hold. A signal, a loss or the end of the
// parent ends that; the command has ended, and its exit code stands.
func lingerUntil(parent context.Context, t time.Time, l hasp.Hold, sigs *signals.Signals) {
	ctx, cancel := context.WithCancel(l.Context())
	defer context.AfterFunc(parent, cancel)()
	ctx, stop := sigs.Until(ctx)
	sleep(ctx, time.Until(t))
	_ = stop()
}

// releaseBound is how long a release may take before the rest is left to the TTL: the command is
// done, and the caller waits for its exit code.
const releaseBound = 5 * time.Second

// giveBack releases within that time.
func giveBack(l hasp.Hold) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseBound)
	defer cancel()
	return l.Release(ctx)
}

// settle releases the lock. A loss that only the release finds out counts as a loss during the run:
// it is too late for the command, but the reader of the exit code must know. A release that is only
// unconfirmed is no failure of the command; the TTL finishes it.
func settle(end *job.Ending, l hasp.Hold, r *reporter, why func(lost error) error) {
	r.holding.Store(false)
	err := giveBack(l)
	switch {
	case err == nil || end.Lost != nil:
	case errors.Is(err, hasp.ErrLost):
		end.Lost = err
	default:
		r.say("%v", err) // the command's status matters more
	}
	end.Explain(why)
}

// recordOf says how the command ended, for the record of the end.
func recordOf(end *job.Ending) record {
	switch {
	case end.NotStarted != nil:
		return record{}
	case end.Status.Signal != 0:
		return record{Outcome: exit.OutcomeSignaled, ChildSignal: signals.Name(end.Status.Signal)}
	}
	return record{Outcome: exit.OutcomeExited, ChildExit: &end.Status.Code}
}

// wordSay is the value of --on-ask by which only people are told.
const wordSay = "say"

// asks are the requests for a lock. The library reports each once, perhaps before the command has
// started. Requests beyond the channel's capacity are dropped: the command has been told.
func asks() chan hasp.Owner { return make(chan hasp.Owner, 16) }

// askEvery is how often the queue is read for people.
const askEvery = 3 * time.Second

// whenAsked has the library look for requests for the lock, as --on-ask says. People are told
// within three seconds, which costs nothing for a short run. A command that reacts is told at once,
// at the price of a watch on the name.
//
// A store that does not show who waits has no requests. --on-ask stop is refused there, by the
// library; the default has nothing to say.
func (f *commandFlags) whenAsked(c *hasp.Client, requests chan<- hasp.Owner) []hasp.LockOption {
	pass := func(by hasp.Owner) {
		select {
		case requests <- by:
		default:
		}
	}
	switch {
	case f.onAsk.Ignores(), f.onAsk.Says() && (!c.Traits().FIFO || f.unheard()):
		return nil
	case f.onAsk.Says():
		return []hasp.LockOption{hasp.Revocable(askEvery, pass)}
	}
	return []hasp.LockOption{hasp.Revocable(0, pass)}
}

// unheard reports that words about the lock reach no one.
func (f *commandFlags) unheard() bool { return f.quiet && f.statusFD == -1 }
