//go:build unix

package cli

import (
	"cmp"
	"errors"
	"sync"
	"syscall"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/internal/exit"
)

// export is hold --export: in the hasp that the shell has started, or in the background holder.
func (a *app) export(names []string, f *runFlags, x *exportFlags) error {
	if a.holder != nil {
		return a.keep(names, f, x)
	}
	ctx, stop := interruptible()
	defer stop()
	pid := x.pid
	if !x.given {
		pid = hold.Caller
	}
	return hold.Start(ctx, pid, a.args, func(s hold.State, shell int) error {
		return a.print("%s", hold.Text(a.shellVariables(s), s, shell))
	})
}

// keep acquires the locks in the background holder, and has it hold them.
func (a *app) keep(names []string, f *runFlags, x *exportFlags) error {
	f.statusFD, f.onAsk = -1, job.Reaction{Words: wordSay, Text: wordSay}
	r, err := a.report(title(names), &f.storeFlags, &f.commandFlags)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	awaited, told := a.holder.WhileAwaited(ctx)
	requests := asks()
	client, held, err := a.get(awaited, names, f.holdNote(), f, r, requests)
	if in := cmp.Or(told(), interruption(ctx, nil)); in != nil {
		if err == nil {
			client.Close() // releases: no shell has been told of the lock
		}
		err = in
	}
	if err != nil {
		return r.done(record{}, exit.Of(err))
	}
	defer client.Close()
	held.numbered = len(f.locks) > 0
	l := a.heldLock(client, held, x, r)
	l.Requests = requests
	state, err := a.holder.Keep(ctx, l)
	if err != nil {
		return r.done(record{}, exit.Of(err))
	}
	return r.done(record{}, &exit.Failure{Code: state.Exit, Err: errors.New(state.Message), Told: true})
}

// heldLock makes the lock that a background holder is handed.
func (a *app) heldLock(client *hasp.Client, held *commandLease, x *exportFlags, r *reporter) hold.Lock {
	onLost := x.onLost.Signal
	if x.onLost.Ends() {
		onLost = syscall.SIGTERM
	}
	why := sync.OnceValue(func() error { return explainLoss(client, held, held.Err()) })
	return hold.Lock{
		Lost: held.Context().Done(), State: func() hold.State { return stateOf(held, r, why) }, Release: func() error { return giveBack(held) },
		Acquired: r.acquired, MaxHold: x.maxHold.d, OnLost: onLost,
		Silent: x.given, Say: r.say, Detail: r.detail,
	}
}
