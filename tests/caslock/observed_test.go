package caslock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// For how long a dead holder's record is observed is said by the record: its TTL counts, not that
// of who waits.
func TestTTLOfTheHolder(t *testing.T) {
	for what, holders := range map[string]time.Duration{"longer": 4 * ttl, "shorter": ttl / 2} {
		t.Run(what, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
				other := connect(t, c, open, nil)
				l := &line{}
				dead, err := hasp.New(caslock.New(open(c, l), nil), hasp.WithTTL(holders))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { l.Heal(); dead.Close(); l.Close() }()
				if _, err := dead.Mutex("a").Lock(t.Context()); err != nil {
					t.Fatal(err)
				}
				l.Partition()
				_, took := within(t, holders+holders/100+2*time.Second, func() (*hasp.Lease, error) { return other.Mutex("a").Lock(t.Context()) })
				if took < holders {
					t.Errorf("taken after %s", took)
				}
			})
		})
	}
}

// died makes records of holders that died long ago.
func died(t *testing.T, c *contents, names ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, name := range names {
		c.putLocked(caslock.Record{Name: name, ID: fmt.Sprintf("dead-%d", i), TTL: ttl, Renewed: time.Now().Add(-time.Hour), Nonce: "n", Token: 1})
	}
}

// What looks over is observed for a TTL by those who ask, all at the same time, and then none is
// shown: by the list of names, by the leader, by a try. Before that the request's context ends it.
func TestDeadAreObserved(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		var names []string
		for i := range 50 {
			names = append(names, fmt.Sprintf("n%d", i))
		}
		died(t, c, names...)
		names2 := func(p *peer, ctx context.Context) (n int, err error) {
			for _, e := range p.Names(ctx, "n") {
				if e != nil {
					return n, e
				}
				n++
			}
			return n, nil
		}
		p := connect(t, c, open, nil)
		short, cancel := context.WithTimeout(t.Context(), ttl/2)
		defer cancel()
		began := time.Now()
		if n, err := names2(p, short); !errors.Is(err, context.DeadlineExceeded) || n != 0 {
			t.Errorf("%d names, %v", n, err)
		}
		if took := time.Since(began); took > ttl/2+time.Second {
			t.Errorf("given up after %s", took)
		}
		other := connect(t, c, open, nil) // it has seen nothing
		began = time.Now()
		if n, err := names2(other, t.Context()); err != nil || n != 0 {
			t.Errorf("%d names, %v", n, err)
		}
		if took := time.Since(began); took < ttl || took > ttl+ttl/100+2*time.Second {
			t.Errorf("50 dead names took %s", took)
		}
		died(t, c, "led")
		if _, err := other.Election("led").Leader(t.Context()); !errors.Is(err, hasp.ErrNotHeld) {
			t.Errorf("a dead leader: %v", err)
		}
		if _, err := other.Mutex("led").TryLock(t.Context()); err != nil { // it knows already
			t.Error(err)
		}
	})
}

// A watch tells an end that was observed, once, though nothing happens in the store.
func TestWatchTellsAnEnd(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		dead, other := connect(t, c, open, nil), connect(t, c, open, nil)
		if _, err := dead.Mutex("a").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		var told atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			other.Backend.(driver.Watcher).Watch(ctx, "a", func() { told.Add(1) })
		}()
		time.Sleep(time.Second)
		dead.line.Partition()
		time.Sleep(ttl / 2)
		if n := told.Load(); n != 1 {
			t.Errorf("told %d times while it may live", n)
		}
		time.Sleep(2 * ttl)
		if n := told.Load(); n != 2 {
			t.Errorf("told %d times when its time is over", n)
		}
		cancel()
		<-ended
	})
}

// A TTL of centuries, in which a sum with it is no duration any more, is held as well, and waited for.
func TestLongestTTL(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		b := caslock.New(open(c, &line{}), nil)
		holder, err := hasp.New(b, hasp.WithTTL(driver.Forever-time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Close()
		other := connect(t, c, open, nil)
		lease, err := holder.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Mutex("a").TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
			t.Errorf("a try: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*ttl)
		defer cancel()
		if _, err := other.Mutex("a").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// overtaken has a read that a caller marks as late answered after a watch has told of a free record.
type overtaken struct {
	numbered
	freed chan struct{}
}

type late struct{}

func (o overtaken) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	r, v, err := o.numbered.Load(ctx, name)
	if ctx.Value(late{}) != nil {
		<-o.freed
	}
	return r, v, err
}

func (o overtaken) Watch(ctx context.Context, name string, changed func(caslock.Record, caslock.Version)) error {
	return o.numbered.Watch(ctx, name, func(r caslock.Record, v caslock.Version) {
		if changed(r, v); r.ID == "" {
			close(o.freed)
		}
	})
}

// A read that a watch has overtaken does not hide from a waiter that the lock is free: the watch
// tells that once.
func TestOvertakenRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, freed := newContents(), make(chan struct{})
		holder := connect(t, c, kinds["Numbered"], nil)
		other := connect(t, c, func(c *contents, l *line) caslock.Store {
			return overtaken{numbered{hashed{c, l}}, freed}
		}, nil)
		lease, err := holder.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan time.Time)
		go func() {
			defer close(got)
			if _, err := other.Mutex("a").Lock(t.Context()); err != nil {
				t.Error(err)
			}
			got <- time.Now()
		}()
		time.Sleep(time.Second)
		go other.Inspect(context.WithValue(t.Context(), late{}, true), "a")
		time.Sleep(time.Second)
		began := time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := (<-got).Sub(began); took > time.Second {
			t.Errorf("the next one has it after %s", took)
		}
	})
}

// A backend may be closed while a name begins to be followed: the race detector tells.
func TestCloseBesideWatch(t *testing.T) {
	for range 1000 {
		b := caslock.New(kinds["Hashed"](newContents(), nil), nil)
		ended := make(chan error)
		go func() { ended <- b.(driver.Watcher).Watch(t.Context(), "a", func() {}) }()
		time.Sleep(rand.N(50 * time.Microsecond))
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, driver.ErrClosed) {
			t.Fatalf("a watch of a closed backend: %v", err)
		}
	}
}
