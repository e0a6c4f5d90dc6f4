package hasp_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// S8: the answer of an enqueue is lost. It is asked again under the same id, and makes one
// entry.
func TestLostAnswerOfEnqueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		b.plan("enqueue", plan{loseAnswer: errNetwork, times: 3})
		l := lock(t, c, "a")
		if n := entries(t, other, "a"); n != 1 {
			t.Errorf("%d entries, want 1", n)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if n := entries(t, other, "a"); n != 0 {
			t.Errorf("%d entries after the release", n)
		}
	})
}

// L3, L4: the caller gives up while it is unknown whether the entry exists. Lock returns at once,
// and the entry is removed although the caller's context has ended and the first attempts to
// remove it fail as well.
func TestCancelAfterLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		b.plan("enqueue", plan{loseAnswer: errNetwork})
		b.plan("leave", plan{err: errNetwork, times: 3})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("shutting down"))
		defer cancel()
		began := time.Now()
		_, err := c.Mutex("a").Lock(ctx)
		wantErr(t, err, context.DeadlineExceeded, context.Cause(ctx))
		if got := time.Since(began); got != time.Second {
			t.Errorf("returned after %s, the context ended after 1s", got)
		}
		if n := entries(t, other, "a"); n != 1 {
			t.Fatalf("%d entries: the test has nothing to clean up", n)
		}
		time.Sleep(time.Second)
		if n := entries(t, other, "a"); n != 0 {
			t.Error("an orphan was left behind")
		}
	})
}

// A waiter that gives up leaves the queue, and those behind it move up.
func TestCancelWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		holder := lock(t, other, "a")
		ctx, cancel := context.WithCancel(t.Context())
		waiting := lockLater(ctx, c, "a")
		synctest.Wait()
		behind := lockLater(t.Context(), other, "a")
		synctest.Wait()
		if n := entries(t, other, "a"); n != 3 {
			t.Fatalf("%d entries, want 3", n)
		}
		cancel()
		wantErr(t, (<-waiting).err, context.Canceled)
		synctest.Wait()
		if n := entries(t, other, "a"); n != 2 {
			t.Errorf("%d entries after the cancel, want 2", n)
		}
		if err := holder.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if r := <-behind; r.err != nil {
			t.Error(r.err)
		}
	})
}

// The store cannot be reached from the start: the caller learns it by the TTL at the latest,
// also if its own context would wait for ever.
func TestUnreachableFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		b.plan("open", plan{err: errNetwork})
		began := time.Now()
		_, err := c.Mutex("a").Lock(context.Background())
		wantErr(t, err, errNetwork)
		if got := time.Since(began); got > time.Second {
			t.Errorf("a refused connection took %s to tell", got)
		}
		b.heal("open")
		b.plan("enqueue", plan{err: errNetwork})
		b.plan("keepalive", plan{err: errNetwork})
		began = time.Now()
		_, err = c.Mutex("a").Lock(context.Background())
		wantErr(t, err, hasp.ErrUnknown, errNetwork)
		if got := time.Since(began); got > T {
			t.Errorf("told after %s, later than the TTL", got)
		}
	})
}

// The store answers, but cannot do it: memory full, say. A refusal is told at once, an error
// of unknown meaning within the TTL, although the session itself is healthy.
func TestFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		b.plan("enqueue", plan{err: driver.ErrRefused})
		began := time.Now()
		_, err := c.Mutex("a").Lock(context.Background())
		wantErr(t, err, driver.ErrRefused)
		if got := time.Since(began); got != 0 {
			t.Errorf("a refusal was told after %s", got)
		}
		b.plan("enqueue", plan{err: errNetwork})
		_, err = c.Mutex("a").Lock(context.Background())
		wantErr(t, err, hasp.ErrUnknown, errNetwork)
		if got := time.Since(began); got < T || got > T+2*time.Second {
			t.Errorf("gave up after %s", got)
		}

		b.heal("enqueue") // one that waits already is patient
		holder := lock(t, other, "a")
		waiting := lockLater(t.Context(), c, "a")
		synctest.Wait()
		b.plan("wait", plan{err: driver.ErrRefused})
		b.plan("enqueue", plan{err: driver.ErrRefused})
		time.Sleep(10 * T)
		b.heal("wait")
		b.heal("enqueue")
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := <-waiting; r.err != nil {
			t.Error(r.err)
		}
	})
}

// Only waiting fails, asking works: no busy loop, and the grant is found by asking.
func TestFailingWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		holder := lock(t, other, "a")
		b.plan("wait", plan{err: errNetwork})
		waiting := lockLater(t.Context(), c, "a")
		time.Sleep(time.Minute)
		if n := b.enqueues.Load(); n > 100 {
			t.Errorf("asked %d times in a minute", n)
		}
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := <-waiting; r.err != nil {
			t.Error(r.err)
		}
	})
}

// L4: an entry that cannot be removed is kept alive by its session, so the client goes on
// trying for as long as that lives.
func TestCleansUpForAsLongAsItTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		b.plan("enqueue", plan{loseAnswer: errNetwork})
		b.plan("leave", plan{err: errNetwork})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Mutex("a").Lock(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		time.Sleep(10 * T)
		if n := entries(t, other, "a"); n != 1 {
			t.Fatalf("%d entries: the test has nothing to clean up", n)
		}
		b.heal("leave")
		time.Sleep(5 * time.Second)
		if n := entries(t, other, "a"); n != 0 {
			t.Error("an orphan was left behind, and the session keeps it alive")
		}
	})
}

// An operator removes a waiter's entry: it queues up again.
func TestEvictedWaiterQueuesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		holder := lock(t, other, "a")
		waiting := lockLater(t.Context(), c, "a")
		synctest.Wait()
		q, err := other.Inspect(t.Context(), "a")
		if err != nil || len(q.Waiters) != 1 {
			t.Fatalf("%+v, %v", q, err)
		}
		b.plan("wait", plan{before: time.Hour}) // the driver does not notice by itself
		if err := b.Backend.(driver.Evicter).Evict(t.Context(), "a", q.Waiters[0].ID, ""); err != nil {
			t.Fatal(err)
		}
		b.heal("wait")
		synctest.Wait()
		if n := entries(t, other, "a"); n != 2 {
			t.Errorf("%d entries, want holder and waiter", n)
		}
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := <-waiting; r.err != nil {
			t.Error(r.err)
		}
	})
}

// A grant whose answer reaches a process only after it was stopped beyond its deadline is
// no grant: the next may hold already.
func TestGrantAfterTheDeadlineIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		b.plan("keepalive", plan{err: errNetwork, times: 100}) // as silent as a stopped process
		answer := make(chan struct{})
		b.plan("enqueue", plan{hang: answer, times: 1})
		waiting := lockLater(t.Context(), c, "a")
		time.Sleep(T + time.Second)
		next := lock(t, other, "a")
		b.heal("keepalive")
		close(answer)
		select {
		case r := <-waiting:
			if r.err == nil {
				t.Fatalf("two hold: the answer was counted after the deadline (Held %t, %t)", r.lease.Held(), next.Held())
			}
		case <-time.After(time.Second): // queued up again behind the holder: also right
		}
	})
}

// A session that expired without anybody's fault (a suspended machine) costs the next Lock
// nothing but a new session.
func TestExpiredSessionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		if err := lock(t, c, "a").Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.plan("enqueue", plan{err: driver.ErrGone, times: 1})
		if err := lock(t, c, "a").Release(t.Context()); err != nil {
			t.Error(err)
		}
		b.plan("enqueue", plan{err: driver.ErrGone})
		_, err := c.Mutex("a").TryLock(t.Context()) // a try gives up on a store that goes on so
		wantErr(t, err, driver.ErrGone)
	})
}

func TestDeadlockWithOneself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		outer := lock(t, c, "a")
		inner, err := c.Mutex("b").Lock(outer.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Mutex("a").Lock(inner.Context()) // found through the lease between
		wantErr(t, err, hasp.ErrDeadlock)
		_, err = c.RWMutex("a").RLock(inner.Context())
		wantErr(t, err, hasp.ErrDeadlock)
		_, err = c.Mutex("a").TryLock(inner.Context()) // would not wait, so it is only busy
		wantErr(t, err, hasp.ErrBusy)

		ctx, cancel := context.WithTimeout(outer.Context(), time.Second)
		defer cancel()
		_, err = other.Mutex("a").Lock(ctx) // another client: the store decides
		wantErr(t, err, context.DeadlineExceeded)

		held := outer.Context()
		if err := outer.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		again, err := c.Mutex("a").Lock(context.WithoutCancel(held)) // released since: no deadlock
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Everything wrong is refused before the store is asked anything.
func TestRefusedBeforeAnyRequest(t *testing.T) {
	b, c, _ := pair(t)
	ctx := t.Context()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	long := make([]byte, 1025)
	for name, try := range map[string]struct {
		do   func() error
		want error
	}{
		"empty name":      {func() error { _, err := c.Mutex("").Lock(ctx); return err }, hasp.ErrInvalid},
		"NUL":             {func() error { _, err := c.Mutex("a\x00b").Lock(ctx); return err }, hasp.ErrInvalid},
		"not UTF-8":       {func() error { _, err := c.Mutex("a\xffb").Lock(ctx); return err }, hasp.ErrInvalid},
		"513 bytes":       {func() error { _, err := c.Mutex(string(make([]byte, 513))).Lock(ctx); return err }, hasp.ErrInvalid},
		"nil option":      {func() error { _, err := c.Mutex("a", nil).Lock(ctx); return err }, hasp.ErrInvalid},
		"nil of a client": {func() error { _, err := hasp.New(b, nil); return err }, hasp.ErrInvalid},
		"nil context":     {func() error { _, err := c.Mutex("a").Lock(noContext); return err }, hasp.ErrInvalid},
		"ended context":   {func() error { _, err := c.Mutex("a").Lock(ended); return err }, context.Canceled},
		"long note":       {func() error { _, err := c.Mutex("a", hasp.Note(string(long))).Lock(ctx); return err }, hasp.ErrInvalid},
		"NUL in a note":   {func() error { _, err := c.Mutex("a", hasp.Note("x\x00")).Lock(ctx); return err }, hasp.ErrInvalid},
		"NUL in an ask":   {func() error { _, err := c.Mutex("a", hasp.AskHolder("x\x00")).Lock(ctx); return err }, hasp.ErrInvalid},
		"NUL in an owner": {func() error { _, err := hasp.New(b, hasp.WithOwner(hasp.Owner{Program: "x\x00"})); return err }, hasp.ErrInvalid},
		"long value":      {func() error { _, err := c.Election("a").Campaign(ctx, long); return err }, hasp.ErrInvalid},
		"no permits":      {func() error { _, err := c.Semaphore("a", 0).Acquire(ctx, 1); return err }, hasp.ErrInvalid},
		"0 of 3":          {func() error { _, err := c.Semaphore("a", 3).Acquire(ctx, 0); return err }, hasp.ErrInvalid},
		"4 of 3":          {func() error { _, err := c.Semaphore("a", 3).Acquire(ctx, 4); return err }, hasp.ErrInvalid},
		"as many as all":  {func() error { _, err := c.Semaphore("a", driver.Whole).Acquire(ctx, 1); return err }, hasp.ErrInvalid},
		"inspect nothing": {func() error { _, err := c.Inspect(ctx, ""); return err }, hasp.ErrInvalid},
	} {
		if err := try.do(); !errors.Is(err, try.want) {
			t.Errorf("%s: error %v, want one that wraps %v", name, err, try.want)
		}
	}
	if n := b.opens.Load() + b.enqueues.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}

// S1n of one process: goroutines that want one lock are one entry in the store at a time.
func TestLocalQueueKeepsOneInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		holder := lock(t, other, "a")
		var got []<-chan result
		for range 100 {
			got = append(got, lockLater(t.Context(), c, "a"))
			synctest.Wait() // so that they come in this order
		}
		if n := entries(t, other, "a"); n != 2 {
			t.Errorf("%d entries, want the holder and one of the hundred", n)
		}
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		var last uint64
		for i, ch := range got {
			r := <-ch
			if r.err != nil {
				t.Fatal(r.err)
			}
			if r.lease.Token() <= last {
				t.Fatalf("L5: number %d was served out of turn", i)
			}
			last = r.lease.Token()
			if err := r.lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}
