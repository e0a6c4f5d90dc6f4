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

// What looks over is listed at once as that, with the entry to evict, and by who has seen it
// unchanged for its TTL no more; a try takes it then.
func TestDeadAreShown(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		for i := range 50 {
			died(t, c, fmt.Sprintf("n%d", i))
		}
		p := connect(t, c, open, nil)
		names := func() (n int) {
			t.Helper()
			began := time.Now()
			for _, err := range p.Names(t.Context(), "n") {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("a list of names took %s", took)
			}
			return n
		}
		list := func(name string) []driver.Entry {
			t.Helper()
			began := time.Now()
			all, err := p.Backend.List(t.Context(), name, 0)
			if err != nil || time.Since(began) > time.Second {
				t.Fatalf("%v after %s", err, time.Since(began))
			}
			return all
		}
		if n := names(); n != 50 {
			t.Errorf("%d names are listed at first", n)
		}
		since := c.record("n7").Renewed.Add(ttl)
		if all := list("n7"); len(all) != 1 || all[0].ID != "dead-0" || !all[0].LooksOver.Equal(since) || all[0].Left != 0 {
			t.Errorf("listed at first: %+v, want that it looks over since %s", all, since)
		}
		c.alter("n8", func(r *caslock.Record) { r.Renewed = time.Now().Add(time.Hour) }) // another clock's
		if all := list("n8"); len(all) != 1 || all[0].LooksOver.IsZero() || all[0].LooksOver.After(time.Now()) {
			t.Errorf("a stamp of the future: %+v", all)
		}
		if err := p.Evict(t.Context(), "n9", "dead-0", ""); err != nil {
			t.Errorf("what is shown is not evicted: %v", err)
		}
		time.Sleep(ttl + ttl/100 + time.Millisecond)
		if n := names(); n != 0 {
			t.Errorf("%d names are listed after a TTL", n)
		}
		if all := list("n7"); len(all) != 0 {
			t.Errorf("listed after a TTL: %+v", all)
		}
		if _, took := within(t, time.Second, func() (*hasp.Lease, error) { return p.Mutex("n7").TryLock(t.Context()) }); took > time.Second {
			t.Errorf("it knows already, and takes %s", took)
		}
		connect(t, c, open, nil) // a live one is listed as that
		if _, err := p.Mutex("live").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if all := list("live"); len(all) != 1 || !all[0].LooksOver.IsZero() || all[0].Left <= 0 {
			t.Errorf("a live one: %+v", all)
		}
	})
}

// A try waits for a dead holder if its TTL is no longer than the client's own. With a longer one it is
// refused at once, and says since when that looks over.
func TestTryOfDead(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		for name, d := range map[string]time.Duration{"short": ttl / 2, "same": ttl, "long": ttl + time.Second} {
			died(t, c, name)
			c.alter(name, func(r *caslock.Record) { r.TTL = d })
			b := connect(t, c, open, nil).Backend
			s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(string, error) {}})
			if err != nil {
				t.Fatal(err)
			}
			ticket := s.Ticket(driver.Request{Name: name, ID: "try", Units: driver.Whole, Capacity: driver.Whole, NoWait: true})
			began := time.Now()
			v, err := ticket.Enqueue(t.Context())
			took := time.Since(began)
			switch {
			case err != nil:
				t.Error(err)
			case name == "long" && (v.Held || took > time.Second || !v.LooksOver.Equal(c.record(name).Renewed.Add(d))):
				t.Errorf("a longer TTL: %+v after %s", v, took)
			case name != "long" && (!v.Held || took < d || took > d+d/100+2*time.Second):
				t.Errorf("%s: %+v after %s", name, v, took)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
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
