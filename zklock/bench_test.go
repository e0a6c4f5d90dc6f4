package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
)

// contender is one client with a connection of its own. lock returns what unlocks.
type contender struct {
	lock  func(name string) (unlock func() error, err error)
	close func()
}

// rivals are the floor (what any lock of ephemeral nodes must do), the client library's own
// recipe, and ours.
func rivals() map[string]func(b *testing.B, z *backends.ZooKeeper) contender {
	return map[string]func(*testing.B, *backends.ZooKeeper) contender{
		"floor": floor, "go-zookeeper": library,
		"hasp":      func(b *testing.B, z *backends.ZooKeeper) contender { return ours(b, z, "") },
		"hasp-node": func(b *testing.B, z *backends.ZooKeeper) contender { return ours(b, z, "?strategy=node") },
	}
}

func dial(b *testing.B, z *backends.ZooKeeper) *zk.Conn {
	c, events, err := zk.Connect([]string{z.Addr}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		b.Fatal(err)
	}
	for ev := range events {
		if ev.State == zk.StateHasSession {
			break
		}
	}
	return c
}

// floor creates an ephemeral sequential node and deletes it: two round trips, no
// exclusion.
func floor(b *testing.B, z *backends.ZooKeeper) contender {
	c := dial(b, z)
	made := sync.Map{}
	return contender{close: c.Close, lock: func(name string) (func() error, error) {
		if _, ok := made.LoadOrStore(name, true); !ok {
			if _, err := c.Create("/floor-"+name, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && err != zk.ErrNodeExists {
				return nil, err
			}
		}
		node, err := c.Create("/floor-"+name+"/x-", make([]byte, 200), zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
		return func() error { return c.Delete(node, -1) }, err
	}}
}

func library(b *testing.B, z *backends.ZooKeeper) contender {
	c := dial(b, z)
	return contender{close: c.Close, lock: func(name string) (func() error, error) {
		l := zk.NewLock(c, "/library-"+name, zk.WorldACL(zk.PermAll))
		return l.Unlock, l.Lock()
	}}
}

func ours(b *testing.B, z *backends.ZooKeeper, params string) contender {
	c, err := hasp.New(open(b, "zookeeper://"+z.Addr+"/bench"+strings.Trim(params, "?=")+params))
	if err != nil {
		b.Fatal(err)
	}
	return contender{close: func() { c.Close() }, lock: func(name string) (func() error, error) {
		l, err := c.Mutex(name).Lock(context.Background())
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(context.Background()) }, nil
	}}
}

func (c contender) cycle(b *testing.B, name string) {
	unlock, err := c.lock(name)
	if err == nil {
		err = unlock()
	}
	if err != nil {
		b.Error(err)
	}
}

// S1: one goroutine, 16 names in turn.
func BenchmarkUncontended(b *testing.B) {
	z := backends.SharedZooKeeper(b)
	for _, who := range []string{"floor", "hasp", "go-zookeeper", "hasp-node"} {
		b.Run(who, func(b *testing.B) {
			c := rivals()[who](b, z)
			defer c.close()
			for i := range 16 {
				c.cycle(b, fmt.Sprint("s1-", i))
			}
			before := received(b, z)
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				c.cycle(b, fmt.Sprint("s1-", i%16))
				took = append(took, time.Since(began))
			}
			report(b, took, received(b, z)-before)
		})
	}
}

// S1n: a name that has never been used, each time.
func BenchmarkNewName(b *testing.B) {
	z := backends.SharedZooKeeper(b)
	run := time.Now().UnixNano()
	for _, who := range []string{"floor", "hasp", "go-zookeeper"} {
		b.Run(who, func(b *testing.B) {
			c := rivals()[who](b, z)
			defer c.close()
			c.cycle(b, "warm")
			before := received(b, z)
			var took []time.Duration
			for b.Loop() {
				run++
				began := time.Now()
				c.cycle(b, fmt.Sprint("new-", run))
				took = append(took, time.Since(began))
			}
			report(b, took, received(b, z)-before)
		})
	}
}

// S2: 64 goroutines of one client, each with a name of its own.
func BenchmarkParallel(b *testing.B) {
	z := backends.SharedZooKeeper(b)
	for _, who := range []string{"floor", "hasp", "go-zookeeper"} {
		b.Run(who, func(b *testing.B) {
			c := rivals()[who](b, z)
			defer c.close()
			for i := range 64 {
				c.cycle(b, fmt.Sprint("s2-", i))
			}
			before := received(b, z)
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					for range b.N/64 + 1 {
						c.cycle(b, fmt.Sprint("s2-", i))
					}
				})
			}
			wg.Wait()
			n := (b.N/64 + 1) * 64
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "locks/s")
			b.ReportMetric(float64(received(b, z)-before)/float64(n), "packets/lock")
		})
	}
}

// S3: contenders with connections of their own on one name, held for a millisecond. The
// gap is from the call of unlock to the return of the next one's lock. The floor passes
// the turn inside the process, and then has its two round trips one after the other. With
// a thousand, the queue stands beside the herd of the simple scheme.
func BenchmarkHandover(b *testing.B) {
	z := backends.SharedZooKeeper(b)
	for _, n := range []int{8, 64, 512, 1000} {
		for _, who := range []string{"floor", "hasp", "go-zookeeper", "hasp-node"} {
			if n == 1000 && !strings.HasPrefix(who, "hasp") {
				continue
			}
			b.Run(fmt.Sprintf("%s/%d", who, n), func(b *testing.B) { handover(b, z, who, n) })
		}
	}
}

func handover(b *testing.B, z *backends.ZooKeeper, who string, n int) {
	var mu, turn sync.Mutex
	var left time.Time
	var gaps []time.Duration
	var over atomic.Bool // enough has been measured
	var packets int64
	name := fmt.Sprint("s3-", n)
	cs := make([]contender, n)
	for i := range cs {
		cs[i] = rivals()[who](b, z)
	}
	cs[0].cycle(b, name)
	before := received(b, z)
	b.ResetTimer()
	once := func(c contender) {
		if who == "floor" {
			turn.Lock()
			defer turn.Unlock()
		}
		unlock, err := c.lock(name)
		now := time.Now()
		if over.Load() {
			return
		}
		if err != nil {
			b.Error(err)
			over.Store(true)
			return
		}
		mu.Lock()
		if !left.IsZero() {
			gaps = append(gaps, now.Sub(left))
		}
		enough := len(gaps) >= b.N
		mu.Unlock()
		if enough && over.CompareAndSwap(false, true) {
			b.StopTimer()
			packets = received(b, z) - before
			for _, c := range cs { // which ends their waiting
				go c.close()
			}
			return
		}
		time.Sleep(time.Millisecond)
		mu.Lock()
		left = time.Now()
		mu.Unlock()
		if err := unlock(); err != nil && !over.Load() {
			b.Error(err)
		}
	}
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() {
			for !over.Load() {
				once(c)
			}
		})
	}
	wg.Wait()
	report(b, gaps, packets)
}

// S6: two clients in turns, held for ten milliseconds; neither asks again before the other
// has it. The gap is what a waiter really waits after a release.
func BenchmarkTurns(b *testing.B) {
	z := backends.SharedZooKeeper(b)
	for _, who := range []string{"floor", "hasp", "go-zookeeper"} {
		b.Run(who, func(b *testing.B) {
			cs := []contender{rivals()[who](b, z), rivals()[who](b, z)}
			defer cs[0].close()
			defer cs[1].close()
			cs[1].cycle(b, "s6")
			unlock, err := cs[0].lock("s6")
			before := received(b, z)
			var gaps []time.Duration
			for i := 1; b.Loop() && err == nil; i++ {
				var next func() error
				had := make(chan time.Time, 1)
				ask := func() {
					var lockErr error
					next, lockErr = cs[i%2].lock("s6")
					err = errors.Join(err, lockErr)
					had <- time.Now()
				}
				if who != "floor" { // which excludes nobody: it asks when it may
					go ask()
				}
				time.Sleep(10 * time.Millisecond)
				began := time.Now()
				unlockErr := unlock()
				if who == "floor" {
					ask()
				}
				gaps = append(gaps, (<-had).Sub(began))
				err = errors.Join(err, unlockErr)
				unlock = next
			}
			report(b, gaps, received(b, z)-before)
			if err = errors.Join(err, unlock()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func report(b *testing.B, took []time.Duration, packets int64) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(float64(packets)/float64(len(took)), "packets/lock")
}
