package hasp_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// Pairs of features, each of which was found to break what its partner promises.

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
