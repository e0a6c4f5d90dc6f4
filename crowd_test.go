package hasp_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/memlock"
)

// turns has goroutines come one after the other, each of which leaves the lock as it is told to.
type turns struct {
	c     *crowd
	next  int
	began chan int
	end   chan struct{}
	token uint64 // of the last one that began
}

func newTurns(c *crowd) *turns {
	return &turns{c: c, began: make(chan int, 100), end: make(chan struct{})}
}

func (w *turns) come(t *testing.T, ctx context.Context) {
	i := w.next
	w.next++
	go func() {
		err := w.c.Do(ctx, func(ctx context.Context) error {
			l, _ := hasp.LeaseFrom(ctx)
			w.token = l.Token()
			w.began <- i
			<-w.end
			return nil
		})
		if err != nil && ctx.Err() == nil && !errors.Is(err, hasp.ErrLost) {
			t.Error(err)
		}
	}()
	synctest.Wait()
}

// Our own waiters first, in order, up to the bound; then the other machine.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		w := newTurns(newCrowd(c.Mutex("a"), 3, time.Minute))
		w.come(t, t.Context())
		foreign := lockLater(t.Context(), other, "a")
		for range 5 {
			w.come(t, t.Context())
		}
		if n := b.enqueues.Load(); n != 1 {
			t.Errorf("%d requests to the store while all wait", n)
		}
		var first uint64
		for i := range 6 {
			if i == 3 { // three had it
				r := <-foreign
				if r.err != nil {
					t.Fatal(r.err)
				}
				time.Sleep(time.Second)
				if len(w.began) > 0 {
					t.Fatalf("goroutine %d got in although its process had its turns", <-w.began)
				}
				if err := r.lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if n := <-w.began; n != i {
				t.Errorf("turn %d went to %d", i, n)
			}
			if i == 0 {
				first = w.token
			}
			if same := w.token == first; same != (i < 3) {
				t.Errorf("turn %d: token %d, first was %d", i, w.token, first)
			}
			w.end <- struct{}{}
		}
		synctest.Wait()
		if n := entries(t, other, "a"); n != 0 {
			t.Errorf("%d entries left", n)
		}
		if n := b.enqueues.Load(); n != 2 {
			t.Errorf("%d requests to the store for 6 turns in two grants", n)
		}
	})
}

// The bound in time: a lock that was granted long ago is given back.
func TestCrowdTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		w := newTurns(newCrowd(c.Mutex("a"), 100, 5*time.Second))
		w.come(t, t.Context())
		<-w.began
		for i := range 4 {
			w.come(t, t.Context())
			time.Sleep(3 * time.Second)
			before := w.token
			w.end <- struct{}{}
			<-w.began
			if same := w.token == before; same != (i%2 == 0) {
				t.Errorf("turn %d: same token %t", i, same)
			}
		}
		w.end <- struct{}{}
	})
}

// A lock that was lost is not kept, and a kept one is given back when the last waiter gives up.
func TestCrowdGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		w := newTurns(newCrowd(c.Mutex("a"), 100, time.Hour))
		w.come(t, t.Context())
		<-w.began
		w.come(t, t.Context())
		lost := w.token
		evict(t, b, "a")
		w.end <- struct{}{}
		if <-w.began; w.token <= lost || entries(t, other, "a") != 1 {
			t.Errorf("token %d after %d, which was lost", w.token, lost)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w.come(t, ctx)
		cancel()
		w.end <- struct{}{}
		synctest.Wait()
		if n := entries(t, other, "a"); n != 0 {
			t.Errorf("%d entries left", n)
		}
	})
}

// Exclusion and no lost turn, with goroutines that give up at every moment, and a Try in between;
// and nothing is kept at the end.
func TestCrowdUnderCancellation(t *testing.T) {
	store := memlock.New()
	c := client(t, store.Backend())
	m := c.Mutex("a")
	all := newCrowd(m, 5, 10*time.Millisecond)
	var wg sync.WaitGroup
	inside, count := 0, 0 // guarded by the lock alone
	for i := range 40 {
		wg.Go(func() {
			for k := range 100 {
				ctx, cancel := context.WithCancel(context.Background())
				switch (i + k) % 4 {
				case 0:
					time.AfterFunc(time.Duration(k)*time.Microsecond, cancel)
				case 1:
					if l, err := m.TryLock(ctx); err == nil {
						inside++
						inside--
						_ = l.Release(ctx)
					}
				}
				err := all.Do(ctx, func(context.Context) error {
					if inside++; inside != 1 {
						t.Errorf("%d inside", inside)
					}
					inside--
					count++
					return nil
				})
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if count < 3000 { // 40 times 100, less those that may be cancelled
		t.Errorf("%d turns", count)
	}
	l, err := m.TryLock(context.Background())
	for wait := 0; errors.Is(err, hasp.ErrBusy) && wait < 1000; wait++ { // what is left by the last one cancelled
		time.Sleep(time.Millisecond)
		l, err = m.TryLock(context.Background())
	}
	if err != nil || l.Release(context.Background()) != nil {
		t.Fatal(err)
	}
}
