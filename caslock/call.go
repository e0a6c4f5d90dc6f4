package caslock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// requests are what the store is asked. Each runs on a separate goroutine, and its caller goes on
// when its context or the bound ends: a server may hang, a connection die without a word, and the
// client library wait for credentials without looking at a context. What such a request answers
// later is not known to anybody: a write is read back like every other whose answer was lost.
type requests struct {
	ttl   atomic.Int64  // the shortest of the sessions, in nanoseconds; 0: there was none
	slots chan struct{} // has a token for each request that has not returned
}

// mostRequests bounds what a store that never returns can pile up.
const mostRequests = 1024

// withoutSession bounds the requests of a backend that nothing was opened on: doctor's, a list's.
const withoutSession = 10 * time.Second

// opened notes a session's TTL.
func (q *requests) opened(ttl time.Duration) {
	for {
		least := q.ttl.Load()
		if least != 0 && least <= int64(ttl) || q.ttl.CompareAndSwap(least, int64(ttl)) {
			return
		}
	}
}

// bound is for how long a request is waited for: half of the TTL, so that there is time for
// another on a fresh connection.
func (q *requests) bound() time.Duration {
	if ttl := time.Duration(q.ttl.Load()); ttl > 0 {
		return ttl / 2
	}
	return withoutSession
}

// call makes one request of the store.
func call[T any](ctx context.Context, b *backend, request func(context.Context) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	within, cancel := context.WithTimeout(ctx, b.bound())
	defer cancel()
	select {
	case b.slots <- struct{}{}:
	case <-within.Done():
		return none, b.noAnswer(ctx)
	}
	v, err := apart(within, func() (T, error) {
		defer func() { <-b.slots }()
		return request(within)
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = b.noAnswer(ctx)
	}
	return v, err
}

// noAnswer is the error of a request that was not waited for any longer.
func (b *backend) noAnswer(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return fmt.Errorf("%s: no answer in time", b)
}

// apart runs fn, and returns with ctx if that ends first.
func apart[T any](ctx context.Context, fn func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1) // one slot: the caller may have stopped waiting
	go func() {
		v, err := fn()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

func (b *backend) swap(ctx context.Context, r Record, old Version) (Version, error) {
	return call(ctx, b, func(ctx context.Context) (Version, error) { return b.store.Swap(ctx, r, old) })
}

// list is the store's List, of which the bound is for each record, or page of them.
func (b *backend) list(ctx context.Context, prefix string, yield func(Record, Version) bool) error {
	type item struct {
		r Record
		v Version
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	items, ended := make(chan item), make(chan error, 1)
	go func() {
		ended <- b.store.List(within, prefix, func(r Record, v Version) bool {
			select {
			case items <- item{r, v}:
				return true
			case <-within.Done():
				return false
			}
		})
	}()
	idle := time.NewTimer(b.bound())
	defer idle.Stop()
	for {
		select {
		case i := <-items:
			if !yield(i.r, i.v) {
				return nil
			}
			idle.Reset(b.bound())
		case err := <-ended:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-idle.C:
			return b.noAnswer(ctx)
		}
	}
}

// watch follows a name by the store's own watch. One that has not told what there is within the
// bound is ended: it hangs, and those who wait would sleep on a free lock. Later silence is that of a
// quiet name.
//
// It returns when the store's Watch has, or ctx has ended: what cannot be ended is not begun again.
// Nothing that it tells later counts.
func (b *backend) watch(ctx context.Context, w Watcher, name string, changed func(Record)) {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	first := time.AfterFunc(b.bound(), cancel)
	defer first.Stop()
	var mu sync.Mutex // held while changed runs
	apart(ctx, func() (struct{}, error) {
		return struct{}{}, w.Watch(within, name, func(r Record, _ Version) {
			mu.Lock()
			defer mu.Unlock()
			if within.Err() == nil {
				first.Stop()
				changed(r)
			}
		})
	})
	cancel()
	mu.Lock() // one that runs has ended now, and no other begins
	defer mu.Unlock()
}

// atOnce calls do for the numbers from 0 to n-1, in their order, up to most of them at the same
// time, and returns when all calls have.
func atOnce(n, most int, do func(i int)) {
	var all sync.WaitGroup
	var next atomic.Int64
	for range min(n, most) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	all.Wait()
}
