//go:build unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// trial has an adapter lock after the run, past all proxies, with nothing near that could
// excuse it: during the run another client's death, or a stall that was not noted, may explain a
// lock that nothing frees and a waiter that is overtaken.
//
// On a busy machine anything may be late, though. So one more adapter, the clock, takes and gives
// back names that only it uses, all the time: each turn another, since one that its own unlock has
// left taken would stop it. What takes longer than several of its turns was not late, but had to
// wait for the lock.
type trial struct {
	run      *run
	name     string
	adapters []*adapter // of the name; the first one holds, the others wait
	turns    atomic.Int64

	releases, leaks   int
	promised          bool // by the adapter: first come, first served
	rounds, unordered int
	overtaken         int // waiters, in the rounds that were out of order
	why               string
}

const (
	trialWaiters  = 4
	trialRounds   = 5
	fewReleases   = 20 // that are tried at least
	mostReleases  = 200
	mostLeaks     = 3 // then it is clear
	releasesTime  = 3 * time.Second
	unclearTime   = 5 * releasesTime // once an unlock seems to have left the lock taken
	clockNames    = 1000
	longerThan    = 5 // turns of the clock, which takes one
	betweenAsking = 3 // turns of the clock
)

// try has the adapter tried. What could not be tried, and why, is noted too.
func (r *run) try(ctx context.Context, name, clock string) *trial {
	t := &trial{run: r, name: name}
	ctx, cancel := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer func() {
		cancel(nil)
		all.Wait()
		for _, a := range t.adapters {
			a.end()
		}
	}()
	for range 3 + trialWaiters {
		a, err := startAdapter(ctx, r.starter, adapterTask{r.Adapter, r.Store, r.TTL}, true)
		if err != nil {
			t.why = err.Error()
			return t
		}
		t.adapters = append(t.adapters, a)
	}
	all.Go(func() { cancel(t.tick(ctx, t.adapters[0], clock)) })
	users := t.adapters[1:]
	err := t.tryReleases(ctx, users[:2])
	if t.promised = users[0].fifo; t.promised && t.leaks == 0 {
		for n := 0; n < 2*trialRounds && t.rounds < trialRounds && err == nil; n++ {
			err = t.tryOrder(ctx, users)
		}
	}
	if err != nil {
		t.why = cause(ctx, err).Error()
	}
	return t
}

// cause is why the clock has ended, if that is why a request has.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	return err
}

// tick is the clock.
func (t *trial) tick(ctx context.Context, a *adapter, name string) error {
	for {
		if err := t.lock(ctx, a, name+strconv.FormatInt(t.turns.Load()%clockNames, 10)); err != nil {
			return err
		}
		if _, err := t.unlock(ctx, a); err != nil {
			return err
		}
		t.turns.Add(1)
	}
}

func (t *trial) lock(ctx context.Context, a *adapter, name string) error {
	line, err := a.ask(ctx, t.run.settling(), "lock", name)
	if err == nil {
		_, err = grant(line)
	}
	return err
}

// unlock reports whether the adapter says that it has released the lock. It may have lost it, if
// nothing ran for a TTL.
func (t *trial) unlock(ctx context.Context, a *adapter) (released bool, err error) {
	line, err := a.ask(ctx, t.run.settling(), "unlock", "")
	return is(line, "ok"), err
}

// tryReleases has two adapters take the lock in turn. What was released is free: the next one has
// it at its first attempt. If it waits for half of a TTL instead, while the clock goes on, it waits
// for the lock to expire. One such wait may be chance: more are looked for.
func (t *trial) tryReleases(ctx context.Context, pair []*adapter) error {
	began, enough, released := time.Now(), releasesTime, false
	for n := 0; n < mostReleases && t.leaks < mostLeaks && (n < fewReleases || time.Since(began) < enough); n++ {
		a := pair[n%2]
		asked, turns := time.Now(), t.turns.Load()
		err := t.lock(ctx, a, t.name)
		waited, passed := time.Since(asked), t.turns.Load()-turns
		switch late := waited >= t.run.ttl/2; {
		case !released, late && passed < longerThan:
		case late:
			t.leaks++
			t.releases++
			enough = unclearTime
		case err == nil:
			t.releases++
		}
		if err != nil {
			return err
		}
		if released, err = t.unlock(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// tryOrder is one round: one holds, the others ask one after the other, and the last when the
// holder has released, as one that barges in. They have to be granted the lock in that order. The
// clock's turns are between two of them, so that the first is in the queue before the next asks.
func (t *trial) tryOrder(ctx context.Context, users []*adapter) error {
	if err := t.lock(ctx, users[0], t.name); err != nil {
		return err
	}
	var mu sync.Mutex
	var order []int
	var failed error
	var waiting sync.WaitGroup
	ask := func(i int) {
		waiting.Go(func() {
			err := t.lock(ctx, users[i], t.name)
			mu.Lock()
			order = append(order, i) // it is granted to the next one when this one has released it
			mu.Unlock()
			if err == nil {
				_, err = t.unlock(ctx, users[i])
			}
			mu.Lock()
			failed = errors.Join(failed, err)
			mu.Unlock()
		})
	}
	for i := 1; i <= trialWaiters; i++ {
		ask(i)
		t.await(ctx, betweenAsking)
	}
	released, err := t.unlock(ctx, users[0])
	ask(1 + trialWaiters)
	waiting.Wait()
	if err = errors.Join(err, failed); err != nil || !released { // the holder was late: any order is right
		return err
	}
	t.rounds++
	if n := overtakenIn(order); n > 0 {
		t.unordered++
		t.overtaken += n
	}
	return nil
}

// overtakenIn counts those that came after one that has asked later.
func overtakenIn(order []int) (n int) {
	for i, who := range order {
		if slices.ContainsFunc(order[:i], func(earlier int) bool { return earlier > who }) {
			n++
		}
	}
	return n
}

func (t *trial) await(ctx context.Context, turns int64) {
	for from := t.turns.Load(); t.turns.Load() < from+turns && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
}

// addTo adds what was seen to the verdict. One round may be out of order by chance: a process stood
// still for several turns of the clock. Most of them are not.
func (t *trial) addTo(v *Verdict) {
	if v.TrialFailed = t.why; t.releases >= fewReleases/2 || t.leaks > 0 {
		v.Leaks, v.Releases = &t.leaks, t.releases
	}
	if t.promised && t.rounds > 0 {
		if 2*t.unordered <= t.rounds {
			t.overtaken = 0
		}
		v.Inversions = &t.overtaken
	}
	if v.Ordered = t.promised; v.Leaks == nil && v.TrialFailed == "" {
		v.TrialFailed = fmt.Sprintf("only %d releases could be judged: the machine was too slow", t.releases)
	}
}
