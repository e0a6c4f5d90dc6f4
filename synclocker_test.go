package hasp_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// panicked returns what fn panics with.
func panicked(fn func()) (with any) {
	defer func() { with = recover() }()
	fn()
	return nil
}

func cycle(l sync.Locker) {
	l.Lock()
	defer l.Unlock()
}

// Code that knows sync.Locker alone excludes a client of another process, also through a store that is
// away for a while.
func TestSyncLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t, hasp.WithObserver(new(recorder)))
		locker := hasp.SyncLocker(t.Context(), c.Mutex("a"), nil)
		cond := sync.NewCond(locker)
		count := 0
		cond.L.Lock()
		if _, err := other.Mutex("a").TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
			t.Errorf("beside it: %v", err)
		}
		go func() {
			locker.Lock()
			defer locker.Unlock()
			count++
			cond.Signal()
		}()
		for count == 0 {
			cond.Wait() // which unlocks
		}
		locker.Unlock()
		if n := entries(t, other, "a"); n != 0 {
			t.Errorf("%d entries left", n)
		}

		b.plan("enqueue", plan{err: errors.New("no reply")})
		time.AfterFunc(time.Minute, func() { b.heal("enqueue") })
		began := time.Now()
		locker.Lock()
		if took := time.Since(began); took < time.Minute {
			t.Errorf("locked after %s, while the store was away", took)
		}
		locker.Unlock()
		if got := panicked(locker.Unlock); got == nil {
			t.Error("unlocked twice")
		}
	})
}

// Permits and readers are held several times.
func TestSyncLockerShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		two := hasp.SyncLocker(t.Context(), c.Semaphore("s", 2).Locker(1), nil)
		two.Lock()
		cycle(two)
		if n := entries(t, other, "s"); n != 1 {
			t.Errorf("%d holds after two locks and an unlock", n)
		}
		two.Unlock()
		if n := entries(t, other, "s"); n != 0 {
			t.Errorf("%d holds after two unlocks", n)
		}
	})
}

// A loss is told at once, and is no reason for Unlock to panic.
func TestSyncLockerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		var told []error
		locker := hasp.SyncLocker(t.Context(), c.Mutex("a"), func(err error) { told = append(told, err) })
		locker.Lock()
		queue, err := other.Inspect(t.Context(), "a")
		if err == nil {
			err = other.Evict(t.Context(), "a", queue.Holders[0].ID, "for a test")
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) != 1 || !errors.Is(told[0], hasp.ErrLost) {
			t.Errorf("told %v", told)
		}
		locker.Unlock()
		cycle(locker)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) != 1 {
			t.Errorf("told of an unlock: %v", told)
		}

		locker.Lock()
		b.plan("leave", plan{err: driver.ErrGone})
		locker.Unlock() // is the first to learn of it
		synctest.Wait()
		if len(told) != 2 || !errors.Is(told[1], hasp.ErrLost) {
			t.Errorf("told %v", told)
		}
	})
}

// What cannot succeed is told, and Lock does not return without the lock.
func TestSyncLockerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		ended, end := context.WithCancel(t.Context())
		end()
		waiting, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		held := lock(t, other, "held")
		defer held.Unlock()
		for _, x := range []struct {
			ctx  context.Context
			lock hasp.Locker
			want error
		}{
			{ended, c.Mutex("a"), context.Canceled},
			{waiting, c.Mutex("held"), context.DeadlineExceeded},
			{noContext, c.Mutex("a"), hasp.ErrInvalidOption},
			{t.Context(), nil, hasp.ErrInvalidOption},
			{t.Context(), c.Mutex(""), hasp.ErrInvalidName},
		} {
			var told error
			locker := hasp.SyncLocker(x.ctx, x.lock, func(err error) { told = err })
			if got := panicked(locker.Lock); got != told {
				t.Errorf("panic with %v", got)
			}
			wantErr(t, told, x.want)
			if got, ok := panicked(hasp.SyncLocker(x.ctx, x.lock, nil).Lock).(error); !ok || !errors.Is(got, x.want) {
				t.Errorf("without a function: %v", got)
			}
		}
		b.plan("enqueue", plan{err: driver.ErrRefused})
		if got, ok := panicked(hasp.SyncLocker(t.Context(), c.Mutex("a"), nil).Lock).(error); !ok || !errors.Is(got, hasp.ErrRefused) {
			t.Errorf("refused from the start: %v", got)
		}
	})
}
