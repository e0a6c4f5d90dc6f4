package hasp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// LockAny stands in several queues at once, as one client that asks for each lock does: the first
// grant counts, and the other places are left as those of a call whose context has ended, lost
// answers included. It takes handles, as LockAll does, so that notes, limits, readers and permits
// work as everywhere. Rejected: a queue of the whole pool beside those of its names (two clients
// that name different sets would not see each other, nor would a plain Lock of one of the names).

const (
	// anyQueues bounds the queues in which one caller stands: it makes an entry in each.
	anyQueues = 16

	// lookAgain is when a caller who does not stand in all queues looks for free locks again.
	lookAgain = 10 * time.Second
)

// LockAny waits until it holds one of the locks, and says by [Lease.Name] which. It takes the first
// that is free, in the order given. If none is, it waits in the queues of all at once, and takes
// the one that is granted first; should two be granted at the same moment, one is given back at
// once, also with [MinHold]. Of more than 16 locks it waits for 16, drawn at random, and looks
// at all again every ten seconds: so it has no place of first come, first served among them.
//
// Different kinds may be mixed; all must be of one client, and of a lock that is named twice the
// first counts. A lock that ctx holds already counts as taken (but see [Reentrant]); if that is all
// of them, the error wraps ErrDeadlock. The other errors are those of [Mutex.Lock]; one lock that
// cannot be had (ErrMismatch, say) fails the call. [FailOnDeadlock] is refused with
// ErrInvalid: a caller with several ways on is in no deadlock as long as one of them is open,
// and [Client.Deadlocks] shows it in none that is certain.
//
// Observers are told of each lock that was waited for or was granted.
func LockAny(ctx context.Context, locks ...Locker) (*Lease, error) {
	return lockAny(ctx, locks, true)
}

// TryLockAny returns the lease of the first of the locks that is free, and otherwise an error
// wrapping ErrBusy that names the last of them; or ErrQuarantine, if the store's quarantine has
// refused one of them. See [LockAny] and [Mutex.TryLock].
func TryLockAny(ctx context.Context, locks ...Locker) (*Lease, error) {
	return lockAny(ctx, locks, false)
}

func lockAny(ctx context.Context, locks []Locker, wait bool) (*Lease, error) {
	parts, err := partsOf(ctx, locks)
	var once []Locker
	seen := map[string]bool{}
	for _, p := range parts {
		if !seen[p.name] {
			seen[p.name], once = true, append(once, p.Locker)
		}
		if p.cfg.deadlock > 0 {
			err = errAnyDeadlock
		}
	}
	if err != nil {
		return nil, fmt.Errorf("hasp: %w", err)
	}
	return choose(ctx, once, wait)
}

var errAnyDeadlock = fmt.Errorf("lock any: %w: FailOnDeadlock is for a caller that waits for one lock", ErrInvalid)

// choose takes one of the locks, the first that is free.
func choose(ctx context.Context, locks []Locker, wait bool) (*Lease, error) {
	if wait && len(locks) == 1 { // no choice, and so in a deadlock like others
		return locks[0].Lock(ctx)
	}
	h, who, caller := holderOf(ctx), &choice{ctx: ctx}, ctx
	ctx = context.WithValue(ctx, leaseKey{}, who)
	if !wait { // the last refusal is that of the call, and told
		l, before := tryEach(ctx, locks[:len(locks)-1])
		if l != nil || before != nil && !taken(before) {
			return l, before
		}
		l, err := locks[len(locks)-1].TryLock(caller)
		if errors.Is(before, ErrQuarantine) && taken(err) {
			err = before
		}
		return l, err
	}
	for {
		l, err := tryEach(ctx, locks)
		if !taken(err) {
			return l, err
		}
		who.waited.Store(true)
		queues := slices.DeleteFunc(slices.Clone(locks), func(l Locker) bool { // to wait there is to wait for oneself
			p := l.part()
			return holding(h, p.client, p.ask("", p.units)) != nil
		})
		switch len(queues) {
		case 0:
			return locks[0].Lock(ctx) // says so
		case 1: // no choice is left either
			return queues[0].Lock(caller)
		}
		rand.Shuffle(len(queues), func(i, j int) { queues[i], queues[j] = queues[j], queues[i] })
		l, err = firstGranted(ctx, queues[:min(len(queues), anyQueues)], len(queues) > anyQueues)
		if !errors.Is(err, errLookAgain) {
			return l, err
		}
	}
}

// taken reports that a lock is held by another, or by ctx itself, or that a quarantine has refused
// it: the others may be free.
func taken(err error) bool { return refusedTry(err) || errors.Is(err, ErrDeadlock) }

// tryEach returns the lease of the first that is free, or what ends the search. Else the error is
// that of a quarantine, if there was one: to be taken by others says that they do the work, and of
// that lock none knows.
func tryEach(ctx context.Context, locks []Locker) (*Lease, error) {
	var refused error
	for _, lock := range locks {
		l, err := lock.TryLock(ctx)
		if !taken(err) {
			return l, err
		}
		if !errors.Is(refused, ErrQuarantine) {
			refused = err
		}
	}
	return nil, refused
}

var (
	errAnotherGranted = errors.New("another of the locks was granted")
	errLookAgain      = errors.New("time to look at all locks again")
)

// withdrawn reports that the call with ctx ended because its caller has, or seeks, another lock:
// that is no failure to tell the observers.
func withdrawn(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	_, choosing := holderOf(ctx).(*choice)
	return cause == errAnotherGranted || cause == errLookAgain || choosing && refusedTry(err) && ctx.Err() == nil
}

// firstGranted waits in the queues of the locks, and keeps the first grant. Each request is one of
// a Lock whose context ends when another is granted: it takes its place back in the background,
// also if the store's answer was lost. A second grant, which came before that, is released.
func firstGranted(ctx context.Context, locks []Locker, again bool) (*Lease, error) {
	wait, stop := context.WithCancelCause(ctx)
	defer stop(errAnotherGranted)
	if again {
		defer time.AfterFunc(lookAgain, func() { stop(errLookAgain) }).Stop()
	}
	type answer struct {
		lease *Lease
		err   error
	}
	answers := make(chan answer, len(locks))
	for _, lock := range locks {
		go func() {
			l, err := lock.Lock(wait)
			answers <- answer{l, err}
		}()
	}
	var first error
	for left := len(locks) - 1; left >= 0; left-- {
		a := <-answers
		if a.err == nil {
			stop(errAnotherGranted)
			go giveBackRest(left, func() *Lease { return (<-answers).lease })
			return a.lease, nil
		}
		first = cmp.Or(first, a.err)
		stop(a.err) // the others end, or are granted at this moment
	}
	return nil, first
}

// giveBackRest releases what was granted too late.
func giveBackRest(n int, next func() *Lease) {
	for range n {
		if l := next(); l != nil {
			l.entry.session.client.releaseUnwanted(l)
		}
	}
}

// choice marks the context of one that waits for several locks and takes one: what stands in the
// queues says so, since such a waiter is in no certain deadlock.
type choice struct {
	ctx    context.Context
	waited atomic.Bool // the store has answered once that all of them are taken
}

// waited reports that the caller with ctx waits for one of several locks, and so outlasts an outage
// of the store also where it enters the next queue, or looks again. That begins with the answer
// that all are taken, and not in a queue of the store: all its places can be turns in this process,
// behind others who look again at the moment of the outage.
func waited(ctx context.Context) bool {
	c, ok := holderOf(ctx).(*choice)
	return ok && c.waited.Load()
}

func (*choice) find(*Client, *request) *Lease { return nil }
func (*choice) each(func(*Lease) bool) bool   { return true }
func (c *choice) outer() context.Context      { return c.ctx }
