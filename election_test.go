package hasp_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		_, err := other.Election("boss").Leader(t.Context())
		wantErr(t, err, hasp.ErrNotFound)

		ctx, cancel := context.WithCancel(t.Context())
		var seen []string
		done := make(chan error, 1)
		go func() {
			for l, err := range other.Election("boss").Observe(ctx) {
				if err != nil {
					done <- err
					return
				}
				seen = append(seen, string(l.Value))
			}
		}()
		synctest.Wait()

		term, err := c.Election("boss").Campaign(t.Context(), []byte("one"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := term.Publish(t.Context(), []byte("one and a half")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		next := make(chan *hasp.Term)
		go func() {
			term, err := other.Election("boss").Campaign(t.Context(), []byte("two"))
			if err != nil {
				t.Error(err)
			}
			next <- term
		}()
		synctest.Wait()
		l, err := other.Election("boss").Leader(t.Context())
		if err != nil || string(l.Value) != "one and a half" || l.Token != term.Token() || l.ID != term.ID() {
			t.Errorf("Leader() = %+v, %v", l, err)
		}
		if err := term.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := <-next
		if second.Token() <= term.Token() {
			t.Errorf("term %d after %d", second.Token(), term.Token())
		}
		wantErr(t, term.Publish(t.Context(), []byte("late")), hasp.ErrNotHeld)
		synctest.Wait()
		if err := second.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		wantErr(t, <-done, context.Canceled)
		want := []string{"", "one", "one and a half", "two", ""}
		if len(seen) != len(want) {
			t.Fatalf("observed %q, want %q", seen, want)
		}
		for i := range want {
			if seen[i] != want[i] {
				t.Errorf("observed %q, want %q", seen, want)
			}
		}
	})
}

// An observer outlives an outage of the store, and is told of it.
func TestObserveOutlivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		down := &deaf{Backend: b.Backend}
		watching := client(t, down)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		term, err := c.Election("boss").Campaign(t.Context(), []byte("one"))
		if err != nil {
			t.Fatal(err)
		}
		var errs int
		var last string
		for l, err := range watching.Election("boss").Observe(ctx) {
			switch {
			case err != nil && ctx.Err() != nil:
			case err != nil:
				if errs++; errs == 3 {
					down.err = nil
				}
			default:
				if last = string(l.Value); last == "one" && errs == 0 {
					down.err = errNetwork
					if err := term.Publish(ctx, []byte("two")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if last == "two" {
				break
			}
		}
		if errs != 3 || last != "two" {
			t.Errorf("%d errors, then %q", errs, last)
		}
	})
}

// What ends an observer whose store does not answer tells both: its context's end, and why it has
// seen nothing. An outage that is over is no part of it.
func TestObserveTellsWhyItSawNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := pair(t)
		for _, back := range []bool{false, true} {
			down := &deaf{Backend: b.Backend, err: errNetwork}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var last error
			for _, err := range client(t, down).Election("boss").Observe(ctx) {
				if last = err; back {
					down.err = nil
				}
			}
			if !errors.Is(last, context.DeadlineExceeded) || errors.Is(last, errNetwork) == back {
				t.Errorf("the store is back: %v; the end: %v", back, last)
			}
		}
	})
}

// deaf is a connection that cannot read while err is set.
type deaf struct {
	driver.Backend
	err error
}

func (d *deaf) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if d.err != nil {
		return nil, d.err
	}
	return d.Backend.List(ctx, name, limit)
}

// Who leads is read without the queue behind.
func TestLeaderReadsTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &counting{Backend: memlock.New().Backend()}
		c := client(t, b)
		e := c.Election("a")
		term, err := e.Campaign(t.Context(), []byte("v"))
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			other := client(t, b)
			go func() { _, _ = other.Election("a").Campaign(t.Context(), nil) }()
		}
		synctest.Wait()
		if l, err := e.Leader(t.Context()); err != nil || l.Token != term.Token() {
			t.Errorf("%+v, %v", l, err)
		}
		for l, err := range e.Observe(t.Context()) {
			if err != nil || l.Token != term.Token() {
				t.Errorf("%+v, %v", l, err)
			}
			break
		}
		if n := b.most.Load(); n != 1 {
			t.Errorf("%d entries were read to see who leads", n)
		}
	})
}

// counting notes the most entries that one List has returned.
type counting struct {
	driver.Backend
	most atomic.Int64
}

func (b *counting) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	list, err := b.Backend.List(ctx, name, limit)
	b.most.Store(max(b.most.Load(), int64(len(list))))
	return list, err
}
