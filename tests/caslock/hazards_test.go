package caslock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

const ttl = 10 * time.Second

// peer is one client of a store, with the network between.
type peer struct {
	*hasp.Client
	driver.Backend
	line *line
}

func connect(t *testing.T, c *contents, open func(*contents, *line) caslock.Store, o *caslock.Options) *peer {
	t.Helper()
	l := &line{}
	b := caslock.New(open(c, l), o)
	client, err := hasp.New(b, hasp.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Heal()
		client.Close()
		l.Close()
	})
	return &peer{client, b, l}
}

// inFakeTime runs the test on both kinds of stores.
func inFakeTime(t *testing.T, test func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store)) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, newContents(), open) })
		})
	}
}

// alter rewrites a record behind the back of its holder.
func (c *contents) alter(name string, change func(*caslock.Record)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.records[name].record
	change(&r)
	c.putLocked(r)
}

func (c *contents) record(name string) caslock.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records[name].record
}

// within waits in fake time, and returns for how long.
func within(t *testing.T, most time.Duration, lock func() (*hasp.Lease, error)) (*hasp.Lease, time.Duration) {
	t.Helper()
	began := time.Now()
	lease, err := lock()
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if took > most {
		t.Errorf("it took %s, more than %s", took, most)
	}
	return lease, took
}

// A dead holder's record that somebody relabels all the time is taken a TTL and 1 % after it was
// first seen; and a live one's, relabelled as well, never.
func TestRelabelled(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		dead, live, other := connect(t, c, open, nil), connect(t, c, open, nil), connect(t, c, open, nil)
		if _, err := dead.Mutex("a").Lock(ctx); err != nil {
			t.Fatal(err)
		}
		kept, err := live.Mutex("b").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			for ctx.Err() == nil {
				for _, name := range []string{"a", "b"} {
					// What is the same to caslock: another version, where versions are numbers.
					c.alter(name, func(r *caslock.Record) {})
				}
				time.Sleep(time.Second / 3)
			}
		})
		dead.line.Partition()
		lease, took := within(t, ttl+ttl/100+2*time.Second, func() (*hasp.Lease, error) { return other.Mutex("a").Lock(ctx) })
		if took < ttl {
			t.Errorf("taken after %s", took)
		}
		short, stop := context.WithTimeout(ctx, 3*ttl)
		defer stop()
		if _, err := other.Mutex("b").Lock(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the live holder's lock: %v", err)
		}
		if !kept.Held() || !lease.Held() {
			t.Errorf("held: %t, %t", kept.Held(), lease.Held())
		}
		cancel()
		all.Wait()
	})
}

// Stamps of a wrong clock prove nothing: a live holder's lock is called free by no try and by no
// list, and a dead one's is taken by a try, although no queue remembers who waits.
func TestWrongStamps(t *testing.T) {
	for what, wrong := range map[string]time.Duration{"late": -time.Hour, "early": time.Hour} {
		t.Run(what, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
				ctx := t.Context()
				holder, other := connect(t, c, open, nil), connect(t, c, open, nil)
				lease, err := holder.Mutex("a").Lock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				stamp := func() { c.alter("a", func(r *caslock.Record) { r.Renewed = time.Now().Add(wrong) }) }
				stamp()
				var all sync.WaitGroup
				all.Go(func() {
					for lease.Held() { // each renewal, by a clock that is wrong
						time.Sleep(ttl / 10)
						stamp()
					}
				})
				for range 5 {
					if _, err := other.Mutex("a").TryLock(ctx); !errors.Is(err, hasp.ErrBusy) {
						t.Errorf("a try: %v", err)
					}
					if q, err := other.Inspect(ctx, "a"); err != nil || len(q.Holders) != 1 {
						t.Errorf("a list: %+v, %v", q, err)
					}
				}
				holder.line.Partition()
				<-lease.Context().Done()
				all.Wait()
				got, took := within(t, ttl+ttl/100+time.Second, func() (*hasp.Lease, error) { return other.Mutex("a").TryLock(ctx) })
				if took > 0 && got.Token() <= lease.Token() {
					t.Errorf("token %d after %d", got.Token(), lease.Token())
				}
			})
		})
	}
}

// A holder that was cut off for longer than its TTL does not renew, although its record is
// untouched: the loss is told, and the record free for others at once.
func TestJudgesItself(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		gone := make(chan string, 9)
		l := &line{}
		b := caslock.New(open(c, l), nil)
		defer b.Close()
		s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(id string, _ error) { gone <- id }})
		if err != nil {
			t.Fatal(err)
		}
		ticket := s.Ticket(driver.Request{Name: "a", ID: "one", Units: driver.Whole, Capacity: driver.Whole})
		if v, err := ticket.Enqueue(t.Context()); err != nil || !v.Held {
			t.Fatal(v, err)
		}
		for range 3 { // renewed in time it goes on
			time.Sleep(ttl * 9 / 10)
			if d, err := s.KeepAlive(t.Context()); err != nil || d != ttl {
				t.Fatal(d, err)
			}
		}
		before := c.record("a")
		time.Sleep(ttl)
		s.KeepAlive(t.Context())
		select {
		case id := <-gone:
			if id != "one" {
				t.Errorf("%q is gone", id)
			}
		default:
			t.Error("renewed after its TTL was over")
		}
		if now := c.record("a"); now.ID != "" || now.Token != before.Token {
			t.Errorf("the record is %+v", now)
		}
		if err := ticket.Leave(t.Context()); !errors.Is(err, driver.ErrGone) {
			t.Errorf("Leave: %v", err)
		}
	})
}

// A write that the network delivers after Leave was answered takes nothing: on a name that was
// never used, on a free one, and on that of a dead holder.
func TestLateWrite(t *testing.T) {
	for what, past := range map[string]func(t *testing.T, c *contents, p *peer){
		"new": func(*testing.T, *contents, *peer) {},
		"free": func(t *testing.T, c *contents, p *peer) {
			if err := p.Do(t.Context(), "a", func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		},
		"dead": func(t *testing.T, c *contents, p *peer) {
			if _, err := p.Mutex("a").Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.line.Partition()
		},
	} {
		t.Run(what, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
				past(t, c, connect(t, c, open, nil))
				l := &line{}
				b := caslock.New(&writesLate{Store: open(c, nil), late: open(c, l)}, nil)
				defer l.Close()
				defer b.Close()
				s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(string, error) {}})
				if err != nil {
					t.Fatal(err)
				}
				ticket := s.Ticket(driver.Request{Name: "a", ID: "one", Units: driver.Whole, Capacity: driver.Whole})
				if what == "dead" {
					ticket.Enqueue(t.Context()) // it sees the record for the first time
					time.Sleep(2 * ttl)
				}
				l.Partition()
				short, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := ticket.Enqueue(short); err == nil {
					t.Fatal("it was answered")
				}
				if err := ticket.Leave(t.Context()); !errors.Is(err, driver.ErrGone) {
					t.Errorf("Leave: %v", err)
				}
				l.Heal()
				synctest.Wait()
				if r := c.record("a"); r.ID == "one" {
					t.Errorf("a late write took the lock: %+v", r)
				}
			})
		})
	}
}

// writesLate sends the writes with an ID on another line than all else.
type writesLate struct {
	caslock.Store
	late caslock.Store
}

func (w *writesLate) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	if r.ID != "" {
		return w.late.Swap(ctx, r, old)
	}
	return w.Store.Swap(ctx, r, old)
}

// Number is there for both kinds: the inner store has it or not.
func (w *writesLate) Number(v caslock.Version) (uint64, error) {
	if q, ok := w.Store.(caslock.Sequencer); ok {
		return q.Number(v)
	}
	return 1, nil
}

// A grant whose answer was lost is found again with the token that it had, and is trusted from
// before its write was sent, not from when it was found.
func TestLostAnswer(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		lossy := &losesAnswers{Store: open(c, nil)}
		b := caslock.New(lossy, nil)
		defer b.Close()
		var gone atomic.Bool
		s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(string, error) { gone.Store(true) }})
		if err != nil {
			t.Fatal(err)
		}
		ticket := s.Ticket(driver.Request{Name: "a", ID: "one", Units: driver.Whole, Capacity: driver.Whole})
		lossy.losing.Store(true)
		if _, err := ticket.Enqueue(t.Context()); err == nil {
			t.Fatal("it was answered")
		}
		granted := c.record("a").Token
		time.Sleep(ttl / 4)
		lossy.losing.Store(false)
		// On a numbered store the first Enqueue has got no further than the free record that it
		// begins with.
		if v, err := ticket.Enqueue(t.Context()); err != nil || !v.Held || granted != 0 && v.Token != granted {
			t.Fatalf("%+v, %v; the token was %d", v, err, granted)
		}
		time.Sleep(ttl / 8)
		sent := time.Now()
		lossy.losing.Store(true)
		s.KeepAlive(t.Context()) // done, and not answered
		lossy.losing.Store(false)
		lossy.refusing.Store(true)
		time.Sleep(ttl / 2)
		s.KeepAlive(t.Context()) // it reads the renewal back, and cannot write
		lossy.refusing.Store(false)
		if gone.Load() {
			t.Error("lost within a TTL of a renewal that was done")
		}
		time.Sleep(ttl - time.Since(sent))
		s.KeepAlive(t.Context())
		if !gone.Load() {
			t.Error("renewed after a TTL: the renewal counted from when it was found")
		}
		if err := ticket.Leave(t.Context()); !errors.Is(err, driver.ErrGone) {
			t.Error(err)
		}
	})
}

var errLost = errors.New("the answer is lost")

// losesAnswers does what it is asked, and does not say so.
type losesAnswers struct {
	caslock.Store
	losing, refusing atomic.Bool
}

func (l *losesAnswers) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	if l.refusing.Load() {
		return caslock.Absent, errLost
	}
	v, err := l.Store.Swap(ctx, r, old)
	if l.losing.Load() && err == nil {
		return caslock.Absent, errLost
	}
	return v, err
}

// Renewals, values and relabellings at the same time are no loss.
func TestOwnConflicts(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		p := connect(t, c, open, nil)
		p.line.Slow(50 * time.Millisecond)
		term, err := p.Election("a").Campaign(t.Context(), []byte("0"))
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			for range 200 {
				c.alter("a", func(*caslock.Record) {})
				time.Sleep(170 * time.Millisecond)
			}
		})
		for i := range 100 {
			if err := term.Publish(t.Context(), []byte{byte(i)}); err != nil {
				t.Fatalf("value %d: %v", i, err)
			}
			time.Sleep(ttl / 30)
		}
		all.Wait()
		if err := term.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What is deleted by hand is not made again by a renewal; the next grant has a greater token.
func TestDeleted(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		holder, other := connect(t, c, open, nil), connect(t, c, open, nil)
		lease, err := holder.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		delete(c.records, "a")
		c.mu.Unlock()
		time.Sleep(ttl / 2)
		if lease.Held() || c.record("a").ID != "" {
			t.Errorf("held: %t, the record is %+v", lease.Held(), c.record("a"))
		}
		next, err := other.Mutex("a").TryLock(t.Context())
		if err != nil || next.Token() <= lease.Token() {
			t.Errorf("%v: token %d after %d", err, next.Token(), lease.Token())
		}
	})
}

// A later format, another program's bytes, and another name's record are refused, and stay as they
// are.
func TestGarbage(t *testing.T) {
	good := string(caslock.Record{Name: "a", ID: "x", TTL: ttl, Nonce: "n"}.Encode())
	for _, text := range []string{"", "hello", "{}", "[]", `{"holder":"me"}`,
		strings.Replace(good, `"ttl_ms":10000`, `"ttl_ms":0`, 1), strings.Replace(good, `"ttl_ms":10000`, `"ttl_ms":9223372036855`, 1), strings.Replace(good, `"nonce":"n"`, `"nonce":""`, 1)} {
		if r, err := caslock.Decode([]byte(text)); !errors.Is(err, driver.ErrMismatch) {
			t.Errorf("%q is %+v, %v", text, r, err)
		}
	}
	for _, text := range []string{strings.Replace(good, `"hasp":1`, `"hasp":2`, 1), `{"hasp":2,"name":["a"],"nonce":7}`} {
		if _, err := caslock.Decode([]byte(text)); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "has format 2, of a newer hasp, and this program knows format 1") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if r, err := caslock.Decode([]byte(good)); err != nil || r.ID != "x" || r.TTL != ttl {
		t.Errorf("%+v, %v", r, err)
	}
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		p := connect(t, c, open, nil)
		c.mu.Lock()
		c.records["a"] = stored{record: caslock.Record{Name: "b", Nonce: "n"}, revision: 1}
		c.mu.Unlock()
		if _, err := p.Mutex("a").TryLock(t.Context()); !errors.Is(err, hasp.ErrMismatch) {
			t.Errorf("another name's record: %v", err)
		}
		if r := c.record("a"); r.Name != "b" || r.Nonce != "n" {
			t.Errorf("it was overwritten: %+v", r)
		}
	})
}

// What a record is in a store of bytes. A change needs another number.
func TestStoredFormat(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	testkit.SameFormat(t, "a record", 1, []string{
		string(caslock.Record{Name: "a", ID: "x", Owner: "ana", Since: at, Value: []byte("v"), TTL: ttl, Renewed: at, Nonce: "n", Token: 7, Note: "note"}.Encode()),
		string(caslock.Record{Name: "a", Renewed: at, Nonce: "n"}.Encode()),
	}, "d8a374ed10c0f240")
}

// Two renewals are a second apart for those who see seconds only, also if the clock has been set
// back.
func TestResolution(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		p := connect(t, c, open, &caslock.Options{Resolution: time.Second})
		term, err := p.Election("a").Campaign(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ahead := time.Now().Add(ttl / 2) // as if an earlier renewal had been made before the clock was set back
		c.alter("a", func(r *caslock.Record) { r.Renewed = ahead.Truncate(time.Second) })
		last := c.record("a").Renewed
		for range 20 {
			if err := term.Publish(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			now := c.record("a").Renewed
			if now.Sub(last) < time.Second || now != now.Truncate(time.Second) {
				t.Fatalf("renewed at %s, then at %s", last, now)
			}
			last = now
		}
	})
}

// Followers and waiters hear of a renewal as little as of a relabelling.
func TestQuietRenewals(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
		holder, other := connect(t, c, open, nil), connect(t, c, open, nil)
		lease, err := holder.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var told atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { other.Backend.(driver.Watcher).Watch(ctx, "a", func() { told.Add(1) }) })
		time.Sleep(5 * ttl)
		if n := told.Load(); n != 1 {
			t.Errorf("told %d times of a lock that is held", n)
		}
		if err := lease.Release(ctx); err != nil {
			t.Error(err)
		}
		time.Sleep(ttl / 2) // a read comes after a sixth of it, and a quarter of that
		if n := told.Load(); n != 2 {
			t.Errorf("told %d times until it was released", n)
		}
		cancel()
		all.Wait()
	})
}

// Requests for an acquisition, with 2, 8 and 64 clients that want one lock all the time.
func TestRequestsContended(t *testing.T) {
	for _, clients := range []int{2, 8, 64} {
		inFakeTime(t, func(t *testing.T, c *contents, open func(*contents, *line) caslock.Store) {
			var requests, locks atomic.Int64
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			var all sync.WaitGroup
			for range clients {
				p := connect(t, c, func(c *contents, l *line) caslock.Store { return counted{open(c, l), &requests} }, nil)
				p.line.Slow(2 * time.Millisecond)
				all.Go(func() {
					for p.Do(ctx, "a", func(context.Context) error {
						locks.Add(1)
						time.Sleep(100 * time.Millisecond)
						return nil
					}) == nil {
					}
				})
			}
			all.Wait()
			each := float64(requests.Load()) / float64(locks.Load())
			t.Logf("%d clients: %d locks, %.1f requests each", clients, locks.Load(), each)
			if most := float64(8 + 2*clients); each > most || locks.Load() < 100 {
				t.Errorf("%d clients: %d locks, %.1f requests each, more than %.0f", clients, locks.Load(), each, most)
			}
		})
	}
}

// counted counts requests. It hides the watch and the numbers of the store: all clients poll.
type counted struct {
	caslock.Store
	n *atomic.Int64
}

func (c counted) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	c.n.Add(1)
	return c.Store.Load(ctx, name)
}

func (c counted) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	c.n.Add(1)
	return c.Store.Swap(ctx, r, old)
}

// A backup that is restored takes a record back to a version of then, and the store's versions go on
// further up: the next token is above those that were granted since the backup, also if the answers of
// its grant are lost; and no other grant costs more.
func TestTokenAfterRestore(t *testing.T) {
	for _, losing := range []int{0, 1, 2} {
		t.Run(fmt.Sprint("answers lost: ", losing), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newContents()
				var backup map[string]stored
				token := func(lost int) uint64 {
					store := &losesSome{Store: kinds["Numbered"](c, &line{})}
					b := caslock.New(store, nil)
					defer b.Close()
					s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(string, error) { t.Error("gone") }})
					if err != nil {
						t.Fatal(err)
					}
					ticket := s.Ticket(driver.Request{Name: "a", ID: fmt.Sprint("id-", rand.Uint64()), Units: driver.Whole, Capacity: driver.Whole})
					store.left.Store(int64(lost))
					var v driver.Verdict
					for range lost + 1 {
						if v, err = ticket.Enqueue(t.Context()); err != nil && !errors.Is(err, errLost) {
							t.Fatal(err)
						}
					}
					if err != nil || !v.Held || v.Token != c.record("a").Token {
						t.Fatalf("%+v, %v; the record has %d", v, err, c.record("a").Token)
					}
					if again, err := ticket.Enqueue(t.Context()); err != nil || !reflect.DeepEqual(again, v) {
						t.Fatalf("asked again: %+v, %v", again, err)
					}
					if err := ticket.Leave(t.Context()); err != nil {
						t.Fatal(err)
					}
					return v.Token
				}
				token(0)
				backup = maps.Clone(c.records)
				last := token(0)
				before := c.revision
				last = max(last, token(0))
				if c.revision != before+2 {
					t.Errorf("a grant and its release are %d writes", c.revision-before)
				}
				c.records, c.revision = backup, c.revision+1_000_000_000
				if next := token(losing); next <= last {
					t.Errorf("token %d after %d", next, last)
				}
				before = c.revision
				token(0)
				if c.revision != before+2 {
					t.Errorf("later, a grant and its release are %d writes", c.revision-before)
				}
			})
		})
	}
}

// losesSome does what it is asked, and does not say so the first times.
type losesSome struct {
	caslock.Store
	left atomic.Int64
}

func (l *losesSome) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	v, err := l.Store.Swap(ctx, r, old)
	if err == nil && l.left.Add(-1) >= 0 {
		return caslock.Absent, errLost
	}
	return v, err
}

func (l *losesSome) Number(v caslock.Version) (uint64, error) {
	return l.Store.(caslock.Sequencer).Number(v)
}
