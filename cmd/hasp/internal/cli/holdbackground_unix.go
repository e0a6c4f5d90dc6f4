//go:build unix

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
)

// background is hold --background: in the hasp that the user has started, or in the background
// holder. The place in the queue outlives the call that has asked for it: a coding agent's call ends
// after a minute or two, and one that leaves the queue with it comes behind all who asked later.
func (a *app) background(names []string, f *runFlags, x *exportFlags) error {
	f.wait, f.noWait = x.maxWait, false // those of the environment are for hasp run
	want := hold.State{State: "waiting", Name: title(names), PID: x.pid, URL: f.store.Public(), Kind: f.kind(), Exit: exit.CodeBusy}
	if len(f.locks) > 0 {
		for _, name := range names {
			want.Locks = append(want.Locks, view.Lock{Name: name})
		}
	}
	if a.holder != nil {
		return a.await(names, f, x, want)
	}
	ctx, stop := interruptible()
	defer stop()
	var told hold.State
	err := hold.Background(ctx, x.pid, want, a.args, a.heldBeside, func(s hold.State) error {
		told, s.Socket = s, ""
		return a.printJSON(s)
	})
	if err != nil {
		return exit.Of(err)
	}
	return a.tellMine(fmt.Sprintf("process %d", x.pid), told, nil, false)
}

// heldBeside tells a holder, as hasp run tells its command, what else its process has: to wait for
// that would be to wait for oneself, and a cycle of waiters shows as a deadlock.
func (a *app) heldBeside(held []hold.State) []string {
	all := heldAbove(a.settings.Getenv)
	for _, s := range held {
		if s.Kind == "" || s.Kind == kindShared {
			all = alsoHeld(all, s.Store, s.All())
		}
	}
	text, _ := json.Marshal(all) // plain data
	return []string{heldVariable + "=" + string(text)}
}

// await asks for the locks in the background holder, and has it wait and hold them.
func (a *app) await(names []string, f *runFlags, x *exportFlags, want hold.State) error {
	f.statusFD, f.onAsk = -1, job.Reaction{Text: "ignore"} // no one would read it
	r, err := a.report(title(names), &f.storeFlags, &f.commandFlags)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	awaited, told := a.holder.WhileAwaited(ctx)
	opening, cancel := context.WithTimeout(awaited, answerBound)
	defer cancel()
	q, err := a.attempt(opening, names, a.holder.Note(cmp.Or(f.note, "hasp hold")), f.most(), f, r, nil)
	if err != nil {
		return r.done(record{}, exit.Of(cmp.Or(told(), err)))
	}
	// What is granted is released in any case, also while this process leaves.
	defer q.client.Close()
	queued := make(chan struct{})
	q.hidden, r.queued = true, sync.OnceFunc(func() { close(queued) })
	wait, leave := context.WithCancel(ctx)
	defer leave()
	got, ended := make(chan hold.Got, 1), make(chan struct{}) // one goroutine sends one
	go func() {
		defer close(ended)
		got <- a.grant(wait, q, x, want)
	}()
	w := &hold.Wait{State: func() hold.State { return q.placeOf(want) }, Leave: leave, Got: got}
	var first hold.Got
	select {
	case first = <-got:
	case <-queued:
	case <-time.After(answerBound): // the store has not answered: that is told, and waited out
	case <-awaited.Done():
	}
	switch in := told(); {
	case in != nil:
		leave()
		<-ended // it reports, too
		return r.done(record{}, exit.Of(in))
	case first.Failed != nil:
		return r.done(record{}, first.Failed)
	case first.Lost != nil:
		return stayed(a.holder.Keep(ctx, first.Lock))
	}
	return stayed(a.holder.Await(ctx, w))
}

func stayed(s hold.State, err error) error {
	if err != nil {
		return exit.Of(err)
	}
	return &exit.Failure{Code: s.Exit, Err: errors.New(s.Message), Told: true}
}

// grant waits for the locks.
func (a *app) grant(ctx context.Context, q *acquisition, x *exportFlags, want hold.State) hold.Got {
	held, err := q.run(ctx)
	if err != nil {
		return hold.Got{Failed: exit.Of(err)}
	}
	held.numbered = len(want.Locks) > 0
	l := a.heldLock(q.client, held, x, q.report)
	state := l.State
	l.State = func() hold.State {
		s := state()
		s.PID, s.URL, s.Kind = want.PID, want.URL, want.Kind
		return s
	}
	return hold.Got{Lock: l}
}

// placeOf asks the store for the place in the queue.
func (q *acquisition) placeOf(s hold.State) hold.State {
	ctx, cancel := context.WithTimeout(context.Background(), lookBound)
	defer cancel()
	s.Store = q.client.Store()
	queue, err := q.current(ctx)
	if err != nil {
		s.Message = "waiting; the store does not say who is ahead: " + exit.Within(err).Error()
		return s
	}
	_, s.Message = waitingText(queue, time.Now())
	s.Place = 1 + slices.IndexFunc(queue.Waiters, isMe)
	return s
}
