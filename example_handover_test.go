package hasp_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/memlock"
)

// crowd has the goroutines of a process take turns under one lock of the store, which is kept from
// turn to turn: a turn costs microseconds then, and not round trips. The lock is given back when no
// goroutine waits, after most turns, or when it has been held for a time: in between, other
// processes wait longer than they would otherwise. All turns of one grant have its token. Exclusion
// among them is this process's: a resource that checks tokens cannot tell them apart.
type crowd struct {
	mutex *hasp.Mutex
	most  int
	time  time.Duration

	turn    chan struct{} // of capacity 1, full while one has the turn; Go lets the others in in order
	waiting atomic.Int64

	// Of the one that has the turn.
	lease *hasp.Lease // nil: the lock is given back
	turns int         // that are left
	until time.Time
}

func newCrowd(m *hasp.Mutex, most int, time time.Duration) *crowd {
	return &crowd{mutex: m, most: most, time: time, turn: make(chan struct{}, 1)}
}

// Do runs fn in a turn. Its context ends with ctx, and when the lock is lost.
func (c *crowd) Do(ctx context.Context, fn func(context.Context) error) error {
	c.waiting.Add(1)
	select {
	case c.turn <- struct{}{}:
		c.waiting.Add(-1)
	case <-ctx.Done():
		if c.waiting.Add(-1) == 0 && c.try() {
			c.leave() // the lock may have been kept for us alone
		}
		return context.Cause(ctx)
	}
	defer c.leave()
	if c.lease == nil || !c.lease.Held() {
		var err error
		if c.lease, err = c.mutex.Lock(ctx); err != nil {
			return err
		}
		c.turns, c.until = c.most, time.Now().Add(c.time)
	}
	c.turns--
	return errors.Join(fn(c.lease.Bind(ctx)), c.lease.Err())
}

func (c *crowd) try() bool {
	select {
	case c.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

// leave ends a turn. A goroutine for which the lock is kept may give up at the same moment, and see
// that the turn is not over: so leave looks again when it is over.
func (c *crowd) leave() {
	for {
		if c.turns == 0 || c.waiting.Load() == 0 || time.Now().After(c.until) || !c.lease.Held() {
			c.lease.Unlock()
			c.lease = nil
		}
		kept := c.lease != nil
		<-c.turn
		if !kept || c.waiting.Load() > 0 || !c.try() {
			return
		}
	}
}

// A recipe: many goroutines of one process want one lock, and round trips are what it costs.
func Example_crowd() {
	client, err := hasp.New(memlock.New().Backend())
	if err != nil {
		panic(err)
	}
	defer client.Close()
	report := newCrowd(client.Mutex("report"), 100, 50*time.Millisecond)
	var all sync.WaitGroup
	lines := 0 // guarded by the lock
	for range 1000 {
		all.Go(func() {
			err := report.Do(context.Background(), func(ctx context.Context) error {
				lines++
				return ctx.Err()
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	all.Wait()
	fmt.Println(lines)
	// Output: 1000
}
