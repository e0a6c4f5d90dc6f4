//go:build unix

package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/hasptest"
)

// opsEnv sets how many acknowledged writes Load wants. `HASP_FENCING_OPS=100000` is the full
// proof; the default keeps CI short and still has hundreds of forced losses.
const opsEnv = "HASP_FENCING_OPS"

const (
	defaultOps = 900
	holders    = 8
	counter    = "counter"
)

// Load tests S3: holders count in the cell. Each reads it once and then writes one more at a time. The
// lock is real, and is taken away at random between two writes, as by a TTL that has ended; a
// holder that has lost it continues to write, like a process that was paused. With the fence no
// acknowledged write may be lost or come late. Without it the same steps must damage the count, or
// the test would prove nothing. An unfenced target of "" says that another run with the same kind
// of data proves that; this one is then a shorter variant of it.
func Load(t *testing.T, open Opener, fencedTarget, unfencedTarget string) {
	ops := defaultOps
	if s := os.Getenv(opsEnv); s != "" {
		var err error
		if ops, err = strconv.Atoi(s); err != nil || ops < 1 {
			t.Fatalf("%s=%s is not a number of operations", opsEnv, s)
		}
	} else if unfencedTarget == "" {
		ops /= 3
	}
	t.Run("fenced", func(t *testing.T) {
		l := newLoad(t, open, fencedTarget)
		l.advance, l.write = l.resource.Advance, l.resource.Write
		l.run(func() bool { return len(l.acks) >= ops })
		if wrong := l.check(); wrong != "" {
			t.Error(wrong)
		}
		if l.refused == 0 {
			t.Error("no write was ever refused: this run has tested nothing")
		}
		t.Logf("%d writes by %d holders, %d losses, %d late writes refused, %d conflicts", len(l.acks), holders, l.losses, l.refused, l.conflicts)
	})
	if unfencedTarget == "" {
		return
	}
	t.Run("unfenced", func(t *testing.T) {
		l := newLoad(t, open, unfencedTarget)
		l.advance = func(context.Context, string, uint64) error { return nil }
		l.write = func(ctx context.Context, name string, _ uint64, value string) error {
			return l.resource.Overwrite(ctx, name, value)
		}
		// Corruption cannot be undone, so the run ends at the first.
		l.run(func() bool { return l.outOfOrder || len(l.acks) >= 100_000 })
		if wrong := l.check(); wrong == "" {
			t.Error("control: nothing was lost without the fence: this test would not notice one that does nothing")
		}
	})
}

// ack is a write that the resource has confirmed.
type ack struct {
	token uint64
	value int
}

type load struct {
	t        *testing.T
	resource Resource
	advance  func(ctx context.Context, name string, token uint64) error
	write    func(ctx context.Context, name string, token uint64, value string) error
	store    *hasptest.Store

	mu                        sync.Mutex
	acks                      []ack
	seen                      map[int]bool
	outOfOrder                bool // a value was written twice
	refused, losses, failures int
	conflicts                 int
}

func newLoad(t *testing.T, open Opener, target string) *load {
	t.Helper()
	r := opened(t, open, target)
	l := &load{t: t, resource: r, store: hasptest.New(), seen: map[int]bool{}}
	if err := r.Overwrite(t.Context(), counter, "0"); err != nil {
		t.Fatal(err)
	}
	return l
}

// run lets the holders work until done, which is asked under the lock after every write.
func (l *load) run(done func() bool) {
	var working sync.WaitGroup
	for range holders {
		c, err := hasp.New(l.store.Backend())
		if err != nil {
			l.t.Fatal(err)
		}
		defer c.Close()
		working.Go(func() {
			for !l.over(done) {
				l.hold(l.t.Context(), c, done)
			}
		})
	}
	working.Wait()
}

func (l *load) over(done func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures > 0 || done()
}

// steal takes the lock from its holder. It counts writes and not time, so that a slow machine loses
// it as often for the same work.
func (l *load) steal(ctx context.Context, lease *hasp.Lease) {
	if l.store.Backend().(driver.Evicter).Evict(ctx, counter, lease.ID(), "") != nil {
		return // it was taken before
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losses++
}

// hold takes the lock once and writes a few times.
func (l *load) hold(ctx context.Context, c *hasp.Client, done func() bool) {
	lease, err := c.Mutex(counter).Lock(ctx)
	if err != nil {
		l.fail(err)
		return
	}
	defer lease.Release(context.WithoutCancel(ctx)) // ErrLost, if it was taken away
	if err := l.advance(ctx, counter, lease.Token()); err != nil {
		l.fail(err)
		return
	}
	text, err := l.resource.Read(ctx, counter)
	if err != nil {
		l.fail(err)
		return
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		l.fail(err)
		return
	}
	took := time.Millisecond // by the last write
	for range 1 + rand.N(20) {
		if l.over(done) {
			return
		}
		if rand.N(8) == 0 {
			l.steal(ctx, lease)
			time.Sleep(rand.N(2*took + 1)) // the pause after the last check
		}
		start := time.Now()
		if err := l.write(ctx, counter, lease.Token(), strconv.Itoa(value+1)); err != nil {
			l.fail(err)
			return
		}
		took = time.Since(start)
		value++
		l.acknowledge(ack{lease.Token(), value})
	}
}

// fail counts expected errors, and ends the run at any other.
func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, fencing.ErrStale):
		l.refused++
	case errors.Is(err, fencing.ErrConflict): // nothing was written
		l.conflicts++
	default:
		l.failures++
		l.t.Errorf("a holder: %v", err)
	}
}

func (l *load) acknowledge(a ack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = append(l.acks, a)
	if l.seen[a.value] {
		l.outOfOrder = true
	}
	l.seen[a.value] = true
}

// check says what is wrong with the acknowledged writes, or "". Every write is one more than its
// writer had read, so without a loss the values are 1, 2, 3 ... and the last is in the cell; and in
// the order of the values, which is that in which they were applied, no token is smaller than one
// before it.
func (l *load) check() string {
	text, err := l.resource.Read(context.Background(), counter)
	if err != nil {
		return err.Error()
	}
	slices.SortStableFunc(l.acks, func(a, b ack) int { return a.value - b.value })
	for i, a := range l.acks {
		if a.value != i+1 {
			return fmt.Sprintf("lost update: %d writes were acknowledged, and number %d of them set %d", len(l.acks), i+1, a.value)
		}
		if i > 0 && a.token < l.acks[i-1].token {
			return fmt.Sprintf("stale write: %d was set with token %d after token %d had been here", a.value, a.token, l.acks[i-1].token)
		}
	}
	if want := strconv.Itoa(len(l.acks)); text != want {
		return fmt.Sprintf("lost update: the cell is %s after %s acknowledged writes", text, want)
	}
	return ""
}
