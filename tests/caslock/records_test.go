package caslock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// The token of a grant is that of each list and stays so, renewed, published and relabelled; and no
// two writes are alike, though they say the same.
func TestTokenStays(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		p := connect(t, c, open, nil)
		last := uint64(0)
		for range 3 {
			term, err := p.Election("a").Campaign(t.Context(), []byte("v"))
			if err != nil {
				t.Fatal(err)
			}
			nonces := map[string]bool{c.record("a").Nonce: true}
			for i := range 5 {
				if err := term.Publish(t.Context(), []byte("v")); err != nil {
					t.Fatal(err)
				}
				nonces[c.record("a").Nonce] = true
				c.alter("a", func(*caslock.Record) {})
				entries, err := p.Backend.List(t.Context(), "a", 1)
				if err != nil || len(entries) != 1 || entries[0].Seq != term.Token() {
					t.Fatalf("write %d: %+v, %v; the token is %d", i, entries, err, term.Token())
				}
			}
			if len(nonces) != 6 {
				t.Errorf("6 writes, %d of them different", len(nonces))
			}
			if term.Token() <= last {
				t.Errorf("token %d after %d", term.Token(), last)
			}
			last = term.Token()
			if err := term.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Leave does not wait for a renewal that hangs, which takes nothing when it arrives after all.
func TestLeaveBesideHangingRenewal(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		l := &line{}
		b := caslock.New(&writesLate{Store: open(c, nil), late: open(c, l)}, nil)
		defer l.Close()
		defer b.Close()
		s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(string, error) {}})
		if err != nil {
			t.Fatal(err)
		}
		ticket := s.Ticket(driver.Request{Name: "a", ID: "one", Units: driver.Whole, Capacity: driver.Whole})
		if v, err := ticket.Enqueue(t.Context()); err != nil || !v.Held {
			t.Fatal(v, err)
		}
		l.Partition()
		ctx, cancel := context.WithCancel(t.Context())
		hangs := make(chan struct{})
		go func() {
			defer close(hangs)
			s.KeepAlive(ctx)
		}()
		synctest.Wait()
		began := time.Now()
		if err := ticket.Leave(t.Context()); err != nil {
			t.Errorf("Leave: %v", err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("Leave took %s", took)
		}
		l.Heal()
		<-hangs
		cancel()
		synctest.Wait()
		if r := c.record("a"); r.ID != "" {
			t.Errorf("a late renewal took the lock: %+v", r)
		}
	})
}

// deleting is a store that deletes on a condition.
type deleting struct{ numbered }

func (d deleting) Delete(_ context.Context, name string, old caslock.Version) error {
	d.contents.mu.Lock()
	defer d.contents.mu.Unlock()
	if s, found := d.records[name]; !found || revision(s) != old {
		return caslock.ErrConflict
	}
	delete(d.records, name)
	return nil
}

// A free record is deleted a retention after its last use, by a store that does so on a condition
// only; one that is held is not, and the next token is greater.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newContents()
		p := connect(t, c, func(c *contents, l *line) caslock.Store { return deleting{numbered{hashed{c, l}}} }, &caslock.Options{Retention: time.Hour})
		held, err := p.Mutex("held").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		use := func() uint64 {
			l, err := p.Mutex("free").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			return l.Token()
		}
		token := use()
		time.Sleep(50 * time.Minute)
		if c.record("free").Nonce == "" {
			t.Error("deleted before the retention was over")
		}
		time.Sleep(time.Hour)
		if r := c.record("free"); r.Nonce != "" {
			t.Errorf("still there: %+v", r)
		}
		if !held.Held() || c.record("held").ID == "" {
			t.Error("a held one was swept")
		}
		if next := use(); next <= token {
			t.Errorf("token %d after %d", next, token)
		}
	})
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) { // neither store deletes
		p := connect(t, c, open, &caslock.Options{Retention: time.Minute})
		for _, name := range []string{"held", "free"} {
			l, err := p.Mutex(name).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if name == "free" && l.Release(t.Context()) != nil {
				t.Error("not released")
			}
		}
		time.Sleep(time.Hour)
		if c.record("free").Nonce == "" {
			t.Error("it was deleted without a condition")
		}
	})
}
