package hasp

import (
	"context"
	"slices"
	"sync"
)

// localQueues lets one acquisition per name and client into the store at a time, first come,
// first served. A thousand goroutines that want one lock are then one waiter in the
// store's queue: its cost for everybody else does not grow with them, and another
// client waits for one of ours, not for all.
//
// It is for acquiring, not for holding: as soon as the store has granted the lock to one, the next
// may queue up behind it in the store. So the store's push hands the lock over, and nothing waits
// for this process to notice the release first.
//
// Readers and permits do not exclude each other. Once one of them has been granted, those
// behind it that can hold beside it enter together: a round trip for all instead of one for
// each. The first one enters alone, since before its grant they would only make the queue long.
// The price of it all is fairness between processes, and not between goroutines.
//
// It is for economy and order. Exclusion is the store's alone: a Try does not
// pass through here.
type localQueues struct {
	mu    sync.Mutex
	names map[string]localQueue
}

// localQueue is in the map if and only if somebody is inside.
type localQueue struct {
	inside  int
	waiters []localWaiter // oldest first
}

type localWaiter struct {
	turn chan struct{}
	r    *request
}

// localGroup bounds how many enter together, so that a crowd is no burst for the store.
const localGroup = 128

// enter waits for the turn of r. After an error, leave must not follow; otherwise it must.
func (q *localQueues) enter(ctx context.Context, r *request) error {
	q.mu.Lock()
	if q.names == nil {
		q.names = map[string]localQueue{}
	}
	at := q.names[r.name]
	if at.inside == 0 {
		q.names[r.name] = localQueue{inside: 1}
		q.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	at.waiters = append(at.waiters, localWaiter{turn, r})
	q.names[r.name] = at
	q.mu.Unlock()

	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	at = q.names[r.name]
	if i := slices.IndexFunc(at.waiters, func(w localWaiter) bool { return w.turn == turn }); i >= 0 {
		at.waiters = slices.Delete(at.waiters, i, i+1)
		q.names[r.name] = at
		return ctx.Err()
	}
	// leave took us off the queue before we could: the turn is ours, and no other caller
	// will pass it on.
	q.leaveLocked(r, false)
	return ctx.Err()
}

// leave passes the turn on. granted says that r has got what it wanted.
func (q *localQueues) leave(r *request, granted bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leaveLocked(r, granted)
}

func (q *localQueues) leaveLocked(r *request, granted bool) {
	at := q.names[r.name]
	if at.inside--; at.inside > 0 {
		q.names[r.name] = at
		return // the last of a group passes the turn on
	}
	n := min(len(at.waiters), 1)
	if granted {
		n = max(n, at.beside(r))
	}
	if n == 0 {
		delete(q.names, r.name)
		return
	}
	for _, w := range at.waiters[:n] {
		close(w.turn)
	}
	clear(at.waiters[:n])
	q.names[r.name] = localQueue{n, at.waiters[n:]}
}

// beside is how many of the first waiters can hold beside r and each other.
func (at localQueue) beside(r *request) int {
	used := r.units
	for i, w := range at.waiters {
		if used += w.r.units; i == localGroup || w.r.capacity != r.capacity || used > r.capacity {
			return i
		}
	}
	return len(at.waiters)
}
