package hasp_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// Pairs of features, each of which was found to break what its partner promises.

// S1: a writer that became a reader holds one unit. Handed on within the process it would make
// a local writer of it, beside the readers that the store has let in.
func TestDowngradedIsNotHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, lost := range []bool{false, true} { // the answer to Downgrade
			b, c, other := pair(t)
			m := c.RWMutex("a", hasp.LocalHandOver(5, time.Minute))
			writer, err := m.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if lost {
				b.plan("downgrade", plan{loseAnswer: errNetwork, times: 1})
			}
			if err := writer.Downgrade(t.Context()); (err != nil) != lost {
				t.Fatal(err)
			}
			reader, err := other.RWMutex("a").RLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			local := make(chan *hasp.Lease, 1)
			go func() {
				l, err := m.Lock(t.Context())
				if err != nil {
					t.Error(err)
				}
				local <- l
			}()
			synctest.Wait()
			if err := writer.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case <-local:
				t.Fatalf("a writer beside a reader that holds: %t", reader.Held())
			case <-time.After(time.Second):
			}
			if err := reader.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if l := <-local; !l.Held() {
				t.Error("the writer did not get in after the reader")
			}
		}
	})
}

// S1: from before the request is sent a Downgrade may have been done, and other readers may be
// in. A refused one was not done.
func TestReentrantWhileDowngrading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		m := c.RWMutex("a", hasp.Reentrant())
		l, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.plan("downgrade", plan{err: driver.ErrRefused, times: 1})
		wantErr(t, l.Downgrade(t.Context()), driver.ErrRefused)
		again, err := m.Lock(l.Context())
		if err != nil {
			t.Fatalf("a writer after a refused downgrade: %v", err)
		}
		if err := again.Release(t.Context()); err != nil {
			t.Fatal(err)
		}

		b.plan("downgrade", plan{after: time.Second, times: 1})
		done := make(chan error, 1)
		go func() { done <- l.Downgrade(t.Context()) }()
		synctest.Wait()
		if _, err := other.RWMutex("a").RLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = m.Lock(l.Context())
		wantErr(t, err, hasp.ErrDeadlock)
		if _, err := m.RLock(l.Context()); err != nil {
			t.Errorf("a reader's lock again: %v", err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		_, err = m.Lock(l.Context())
		wantErr(t, err, hasp.ErrDeadlock)
	})
}

// An unanswered request may have been carried out: then Reentrant gives no writer.
func TestUnansweredDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		m := c.RWMutex("a", hasp.Reentrant())
		l, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.plan("downgrade", plan{loseAnswer: errNetwork, times: 1})
		wantErr(t, l.Downgrade(t.Context()), hasp.ErrUnknown)
		_, err = m.Lock(l.Context())
		wantErr(t, err, hasp.ErrDeadlock)
		if err := l.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := m.RLock(l.Context()); err != nil {
			t.Errorf("a reader after the downgrade: %v", err)
		}
	})
}

// A term that were handed on would show the value of the leader before.
func TestElectionIsNotBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		e := c.Election("a", hasp.LocalHandOver(5, time.Minute))
		first, err := e.Campaign(t.Context(), []byte("first"))
		if err != nil {
			t.Fatal(err)
		}
		next := make(chan *hasp.Term, 1)
		go func() {
			term, err := e.Campaign(t.Context(), []byte("second"))
			if err != nil {
				t.Error(err)
			}
			next <- term
		}()
		synctest.Wait()
		if err := first.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		term := <-next
		l, err := other.Election("a").Leader(t.Context())
		if err != nil || string(l.Value) != "second" || term.Token() <= first.Token() {
			t.Errorf("%q leads with token %d after %d, %v", l.Value, term.Token(), first.Token(), err)
		}
	})
}

// MinHold keeps the next out, also one of this process, and MaxHold is the waiter's own.
func TestBatchKeepsLimits(t *testing.T) {
	next := func(t *testing.T, m *hasp.Mutex) <-chan result {
		ch := make(chan result, 1)
		go func() {
			l, err := m.Lock(t.Context())
			ch <- result{l, err, time.Now()}
		}()
		synctest.Wait()
		return ch
	}
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		batch := hasp.LocalHandOver(5, time.Minute)
		m := c.Mutex("min", batch, hasp.MinHold(3*time.Second))
		l, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		waiter := next(t, m)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := <-waiter; r.err != nil || r.at.Sub(began) < 3*time.Second {
			t.Errorf("MinHold was over after %s, %v", r.at.Sub(began), r.err)
		}

		if l, err = c.Mutex("max", batch).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		waiter = next(t, c.Mutex("max", batch, hasp.MaxHold(5*time.Second)))
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := <-waiter
		if r.err != nil {
			t.Fatal(r.err)
		}
		select {
		case <-r.lease.Lost():
		case <-time.After(time.Minute):
			t.Error("never lost")
		}
		if held := time.Since(r.at); held != 5*time.Second {
			t.Errorf("lost after %s of MaxHold 5s", held)
		}
	})
}
