package hasp_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/memlock"
)

// Our own waiters first, in order, up to the bound; then the other machine.
func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		m := c.Mutex("a", hasp.LocalHandOver(3, time.Minute))
		first, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		foreign := lockLater(t.Context(), other, "a")
		order := make(chan int)
		leases := make(chan *hasp.Lease)
		for i := range 5 {
			synctest.Wait()
			go func() {
				l, err := m.Lock(t.Context())
				if err != nil {
					t.Error(err)
				}
				order <- i
				leases <- l
			}()
		}
		synctest.Wait()
		if n := b.enqueues.Load(); n != 1 {
			t.Errorf("%d requests to the store while all wait", n)
		}
		l := first
		for i := range 5 {
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if l.Held() {
				t.Error("held after it was handed on")
			}
			if i == 2 { // three had it
				r := <-foreign
				if r.err != nil {
					t.Fatal(r.err)
				}
				select {
				case n := <-order:
					t.Fatalf("waiter %d got in although the batch was full", n)
				case <-time.After(time.Second):
				}
				if err := r.lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if n := <-order; n != i {
				t.Errorf("turn %d went to %d", i, n)
			}
			l = <-leases
			if same := l.Token() == first.Token(); same != (i < 2) || !l.Held() {
				t.Errorf("turn %d: token %d, first was %d; held %t", i, l.Token(), first.Token(), l.Held())
			}
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := entries(t, other, "a"); n != 0 {
			t.Errorf("%d entries left", n)
		}
		if n := b.enqueues.Load(); n != 2 {
			t.Errorf("%d requests to the store for 6 leases in two batches", n)
		}
	})
}

// The bound in time: what was granted long ago is not handed on.
func TestBatchTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		m := c.Mutex("a", hasp.LocalHandOver(100, 5*time.Second))
		l, err := m.Lock(t.Context())
		for i := range 4 {
			if err != nil {
				t.Fatal(err)
			}
			next := make(chan *hasp.Lease)
			go func() {
				l, err := m.Lock(t.Context())
				if err != nil {
					t.Error(err)
				}
				next <- l
			}()
			time.Sleep(3 * time.Second)
			before := l.Token()
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			l = <-next
			if same := l.Token() == before; same != (i%2 == 0) {
				t.Errorf("release %d: same token %t", i, same)
			}
		}
	})
}

// A lost entry is not handed on, and those who wait for it go to the store themselves,
// although the holder hangs and releases nothing.
func TestBatchLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		m := c.Mutex("a", hasp.LocalHandOver(10, time.Hour))
		l, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		got := make(chan *hasp.Lease, 1)
		go func() {
			l, err := m.Lock(ctx)
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		synctest.Wait()
		b.plan("keepalive", plan{err: errNetwork})
		<-l.Lost()
		b.heal("keepalive")
		next := <-got
		if next.Token() <= l.Token() || !next.Held() || entries(t, other, "a") != 1 {
			t.Errorf("token %d after %d, held %t", next.Token(), l.Token(), next.Held())
		}
		wantErr(t, l.Release(t.Context()), hasp.ErrLost)
		if !next.Held() {
			t.Error("the release of the lost lease took the next one's")
		}
	})
}

// Exclusion and no lost turn, with waiters that give up at every moment, a Try in between,
// and holders that are expelled.
func TestBatchUnderCancellation(t *testing.T) {
	var leases counter
	c := client(t, memlock.New().Backend(), hasp.WithObserver(&leases))
	m := c.Mutex("a", hasp.LocalHandOver(5, 10*time.Millisecond), hasp.MaxHold(time.Minute))
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
				l, err := m.Lock(ctx)
				if err == nil {
					if inside++; inside != 1 {
						t.Errorf("%d inside", inside)
					}
					inside--
					count++
					err = l.Release(context.Background())
				}
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if count < 3000 { // 40 times 100, less those that may be cancelled
		t.Errorf("%d leases", count)
	}
	l, err := m.TryLock(context.Background())
	for wait := 0; errors.Is(err, hasp.ErrBusy) && wait < 1000; wait++ { // what is left by the last one cancelled
		time.Sleep(time.Millisecond)
		l, err = m.TryLock(context.Background())
	}
	if err != nil || l.Release(context.Background()) != nil {
		t.Fatal(err)
	}
	_ = c.Close() // waits for what goes on in the background
	if begun, ended := leases.begun.Load(), leases.ended.Load(); begun != ended {
		t.Errorf("%d leases were told, and the end of %d", begun, ended)
	}
}

// counter counts the leases that begin, and those that end.
type counter struct{ begun, ended atomic.Int64 }

func (c *counter) Observe(e hasp.Event) {
	switch e.Kind {
	case hasp.EventAcquired:
		c.begun.Add(1)
	case hasp.EventReleased, hasp.EventLost:
		c.ended.Add(1)
	}
}
