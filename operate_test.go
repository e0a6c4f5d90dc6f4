package hasp_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

func TestEvict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		l := lock(t, c, "a")
		next := lockLater(t.Context(), other, "a")
		synctest.Wait()
		wantErr(t, other.Evict(t.Context(), "a", "unknown", "why"), hasp.ErrNotFound)
		wantErr(t, other.Evict(t.Context(), "a", "", "why"), hasp.ErrInvalid)
		wantErr(t, other.Evict(t.Context(), "", l.ID(), "why"), hasp.ErrInvalid)
		wantErr(t, other.Evict(noContext, "a", l.ID(), "why"), hasp.ErrInvalid)
		wantErr(t, c.Evict(t.Context(), "a", l.ID(), "why"), hasp.ErrUnsupported) // spoiled has no such method
		if !l.Held() {
			t.Fatal(l.Err())
		}
		if err := other.Evict(t.Context(), "a", l.ID(), "why"); err != nil {
			t.Fatal(err)
		}
		<-l.Context().Done()
		if r := <-next; r.err != nil || r.lease.Token() <= l.Token() {
			t.Errorf("%v: token %d after %d", r.err, r.lease.Token(), l.Token())
		}
		_ = b
	})
}

// The holder hears who asks and why, once each, and may comply.
func TestRevocable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		asked := make(chan hasp.Owner, 9)
		l, err := c.Mutex("a", hasp.Revocable(0, func(by hasp.Owner) { asked <- by })).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		lockLater(t.Context(), other, "a") // only waits
		time.Sleep(time.Minute)
		if len(asked) != 0 {
			t.Errorf("asked by somebody who only waits: %+v", <-asked)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, _ = other.Mutex("a", hasp.AskHolder("the deploy cannot wait"), hasp.Note("deploy")).Lock(ctx)
		}()
		// It stands behind its own client's other waiter, in the local queue: not in the store yet.
		third := client(t, other.Backend())
		defer cancel()
		go func() {
			_, _ = third.Mutex("a", hasp.AskHolder("urgent"), hasp.Note("hotfix")).Lock(ctx)
		}()
		if by := <-asked; by.Asks != "urgent" || by.Note != "hotfix" {
			t.Errorf("%+v", by)
		}
		time.Sleep(time.Minute)
		if len(asked) != 0 {
			t.Errorf("asked again: %+v", <-asked)
		}
		q, err := c.Inspect(t.Context(), "a")
		if err != nil || len(q.Waiters) != 2 || q.Waiters[1].Owner.Asks != "urgent" {
			t.Errorf("%+v, %v", q, err)
		}
		cancel()
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = c.Mutex("b", hasp.AskHolder(string(make([]byte, 2000)))).Lock(t.Context())
		wantErr(t, err, hasp.ErrInvalid)
	})
}

// The writer becomes a reader: readers come in, writers do not, not even one that waited
// longer; the lease goes on.
func TestDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _, other := pair(t)
		c := client(t, store.Backend)
		l, err := c.RWMutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		token := l.Token()
		readers := make(chan *hasp.Lease, 1)
		go func() {
			l, err := other.RWMutex("a").RLock(t.Context())
			if err != nil {
				t.Error(err)
			}
			readers <- l
		}()
		synctest.Wait()
		if err := l.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		reader := <-readers
		if !reader.Held() || !l.Held() || l.Token() != token || l.Context().Err() != nil {
			t.Errorf("held %t and %t", reader.Held(), l.Held())
		}
		_, err = c.RWMutex("a").TryLock(t.Context())
		wantErr(t, err, hasp.ErrBusy)
		_, err = c.RWMutex("a", hasp.Reentrant()).Lock(l.Context()) // no way back
		wantErr(t, err, hasp.ErrDeadlock)
		if err := l.Downgrade(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		for _, l := range []*hasp.Lease{l, reader} {
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		wantErr(t, l.Downgrade(t.Context()), hasp.ErrNotHeld)
		wantErr(t, (*hasp.Lease)(nil).Downgrade(t.Context()), hasp.ErrNotHeld)
	})
}

// A writer that waits in front of a reader keeps its place: the downgraded lease lets no other in
// before it.
func TestDowngradeKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _, other := pair(t)
		c, third := client(t, store.Backend), client(t, store.Backend)
		l := lock(t, c, "a")
		writer := lockLater(t.Context(), other, "a")
		synctest.Wait()
		if err := l.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := third.RWMutex("a").TryRLock(t.Context())
		wantErr(t, err, hasp.ErrBusy)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := <-writer; r.err != nil {
			t.Error(r.err)
		}
	})
}

// sessionBound has tickets with no optional method.
type sessionBound struct{ driver.Backend }

func (b sessionBound) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return boundSession{s}, granted, err
}

type boundSession struct{ driver.Session }

func (s boundSession) Ticket(r driver.Request) driver.Ticket {
	return struct{ driver.Ticket }{s.Session.Ticket(r)}
}

func TestDowngradeRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _, _ := pair(t)
		bound := client(t, sessionBound{store})
		wantErr(t, lock(t, bound, "a").Downgrade(t.Context()), hasp.ErrUnsupported) // its ticket cannot
		c := client(t, store.Backend)
		permit, err := c.Semaphore("s", 3).Acquire(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, permit.Downgrade(t.Context()), hasp.ErrUnsupported)
		l := lock(t, c, "b")
		if _, err := c.Mutex("b", hasp.Reentrant()).Lock(l.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, l.Downgrade(t.Context()), hasp.ErrDeadlock)
		wantErr(t, l.Downgrade(noContext), hasp.ErrInvalid)
		gone := lock(t, c, "c")
		evict(t, store, "c")
		wantErr(t, gone.Downgrade(t.Context()), hasp.ErrLost)
	})
}

// queueless is a store that grants in no order, and shows no waiters.
type queueless struct {
	driver.Backend
	driver.Namer
}

func (q queueless) Traits() driver.Traits {
	t := q.Backend.Traits()
	t.FIFO = false
	return t
}

// The functions that need the waiters of a queue are refused if the store shows none: a request
// that no holder can see, and "no deadlock" where none can be seen, would be wrong answers.
func TestHiddenWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memlock.New().Backend()
		c, seeing := client(t, queueless{b, b.(driver.Namer)}), client(t, b)
		for what, opt := range map[string]hasp.LockOption{
			"AskHolder": hasp.AskHolder("why"), "Revocable": hasp.Revocable(0, func(hasp.Owner) {}), "AtRenewal": hasp.Revocable(10*time.Second, func(hasp.Owner) {}),
			"FailOnDeadlock": hasp.FailOnDeadlock(time.Second),
		} {
			if _, err := c.Mutex("a", opt).TryLock(t.Context()); !errors.Is(err, hasp.ErrUnsupported) {
				t.Errorf("%s: %v", what, err)
			}
			l, err := seeing.Mutex("a", opt).TryLock(t.Context())
			if err != nil || l.Release(t.Context()) != nil {
				t.Errorf("%s with a queue: %v", what, err)
			}
		}
		_, err := c.Deadlocks(t.Context())
		wantErr(t, err, hasp.ErrUnsupported)
		if _, err := seeing.Deadlocks(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
