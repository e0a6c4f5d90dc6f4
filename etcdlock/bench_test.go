package etcdlock_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
)

// Each scenario of performance.md runs three ways on one server: "floor", what etcd itself
// needs for one transaction to put a key with a lease and one deletion; "hasp"; and "peer",
// the Mutex of etcd's own package. Only the ratios within one run mean anything.

// taker is a client with a connection of its own.
type taker struct {
	acquire func(name string) error
	release func(name string) error
}

type way struct {
	name string
	make func(b *testing.B, addr string) taker
}

var ways = []way{{"floor", floor}, {"hasp", ours}, {"peer", peer}}

func floor(b *testing.B, addr string) taker {
	c := client(b, addr)
	lease, err := c.Grant(context.Background(), 10)
	if err != nil {
		b.Fatal(err)
	}
	answers, err := c.KeepAlive(context.Background(), lease.ID)
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for range answers { // until the client closes
		}
	}()
	key := func(name string) string { return fmt.Sprintf("floor/%s/%x", name, lease.ID) }
	return taker{
		func(name string) error {
			k := key(name)
			_, err := c.Txn(context.Background()).If(clientv3.Compare(clientv3.CreateRevision(k), "=", 0)).
				Then(clientv3.OpPut(k, "", clientv3.WithLease(lease.ID))).Commit()
			return err
		},
		func(name string) error {
			_, err := c.Delete(context.Background(), key(name))
			return err
		},
	}
}

func ours(b *testing.B, addr string) taker {
	c := locks(b, "etcd://"+addr)
	var held sync.Map
	return taker{
		func(name string) error {
			l, err := c.Mutex(name).Lock(context.Background())
			if err == nil {
				held.Store(name, l)
			}
			return err
		},
		func(name string) error {
			l, _ := held.LoadAndDelete(name)
			return l.(*hasp.Lease).Release(context.Background())
		},
	}
}

func peer(b *testing.B, addr string) taker {
	s, err := concurrency.NewSession(client(b, addr), concurrency.WithTTL(10))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	var held sync.Map
	return taker{
		func(name string) error {
			m := concurrency.NewMutex(s, "peer/"+name)
			held.Store(name, m)
			return m.Lock(context.Background())
		},
		func(name string) error {
			m, _ := held.LoadAndDelete(name)
			return m.(*concurrency.Mutex).Unlock(context.Background())
		},
	}
}

func (t taker) cycle(name string) error {
	if err := t.acquire(name); err != nil {
		return err
	}
	return t.release(name)
}

// S1: one goroutine, 16 warm names. The ways take turns cycle by cycle, so that a machine
// that does other things disturbs them alike, and the ratio is worth something.
func BenchmarkUncontended(b *testing.B) {
	e := backends.SharedEtcd(b)
	takers, took := make([]taker, len(ways)), make([][]time.Duration, len(ways))
	for i, w := range ways {
		takers[i] = w.make(b, e.Addr)
	}
	for n := 0; b.Loop(); n++ {
		for i := range ways {
			began := time.Now()
			if err := takers[i].cycle(fmt.Sprint("s1-", n%16)); err != nil {
				b.Fatal(err)
			}
			if n >= 16 { // warm
				took[i] = append(took[i], time.Since(began))
			}
		}
	}
	base := median(took[0])
	for i, w := range ways {
		b.ReportMetric(median(took[i]), w.name+"-p50-us")
		if base > 0 {
			b.ReportMetric(median(took[i])/base, w.name+"-ratio")
		}
	}
}

// S2: 64 goroutines of one client, each with a name of its own.
func BenchmarkParallel64(b *testing.B) {
	e := backends.SharedEtcd(b)
	for _, w := range ways {
		b.Run(w.name, func(b *testing.B) {
			t := w.make(b, e.Addr)
			var wg sync.WaitGroup
			var n atomic.Int64
			for i := range 64 {
				wg.Go(func() {
					for n.Add(1) <= int64(b.N) {
						if err := t.cycle(fmt.Sprint("s2-", i)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
		})
	}
}

// S3: n clients on one name, held for a millisecond, nobody thinks. The gap is from the
// begin of a release to the next one's return. The floor passes the turn in the process,
// and then releases and acquires one after the other.
func BenchmarkHandOver(b *testing.B) {
	for _, n := range []int{2, 8, 64, 512} {
		for _, w := range ways {
			b.Run(fmt.Sprintf("%d/%s", n, w.name), func(b *testing.B) {
				crowd(b, w, n, time.Millisecond)
			})
		}
	}
}

// S6: two clients take turns, each of which is held for longer than anything takes.
func BenchmarkTurns(b *testing.B) {
	for _, w := range ways {
		b.Run(w.name, func(b *testing.B) { crowd(b, w, 2, 20*time.Millisecond) })
	}
}

// S5: ten thousand locks are held for ten seconds, after they have been taken and whatever
// that leads to is over. Told are the messages to the server, the processor time of this
// process, and the heap of each lock. The floor is a lease with ten thousand keys that
// etcd's client keeps alive; it does not watch them, and neither does the peer.
func BenchmarkHeld10000(b *testing.B) {
	for _, w := range ways {
		b.Run(w.name, func(b *testing.B) {
			e := backends.StartEtcd(b, backends.EtcdOptions{})
			for b.Loop() {
				held(b, w, e)
			}
		})
	}
}

func held(b *testing.B, w way, e *backends.Etcd) {
	const n, lasts = 10_000, 10 * time.Second
	t := w.make(b, e.Addr)
	empty := inUse()
	byMany(b, n, func(i int) error { return t.acquire(fmt.Sprint("s5-", i)) })
	time.Sleep(2 * time.Second)
	heap := int64(inUse()) - int64(empty)
	sent, cpu := total(messages(b, e.Addr)), processorTime(b)
	time.Sleep(lasts)
	cpu = processorTime(b) - cpu
	b.ReportMetric(float64(total(messages(b, e.Addr))-sent)/lasts.Seconds(), "messages/s")
	b.ReportMetric(float64(cpu.Milliseconds()), "cpu-ms")
	b.ReportMetric(float64(heap)/n, "heap-B/lock")
	runtime.KeepAlive(t)
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func crowd(b *testing.B, w way, n int, hold time.Duration) {
	e := backends.SharedEtcd(b)
	takers := make([]taker, n)
	for i := range takers {
		takers[i] = w.make(b, e.Addr)
		if err := takers[i].cycle(fmt.Sprint("warm-", i)); err != nil {
			b.Fatal(err)
		}
	}
	name := fmt.Sprintf("%s-%d", b.Name(), time.Now().UnixNano())
	var gaps []time.Duration // under the lock, as is what follows
	var released time.Time
	left := b.N
	once := func(t taker) bool {
		if err := t.acquire(name); err != nil {
			b.Error(err)
			return false
		}
		if !released.IsZero() {
			gaps = append(gaps, time.Since(released))
		}
		time.Sleep(hold)
		left--
		more := left > 0
		released = time.Now()
		if err := t.release(name); err != nil {
			b.Error(err)
			return false
		}
		return more
	}
	b.ResetTimer()
	if w.name == "floor" {
		for i := 0; once(takers[i%n]); i++ {
		}
	} else {
		var wg sync.WaitGroup
		for _, t := range takers {
			wg.Go(func() {
				for once(t) {
				}
			})
		}
		wg.Wait()
	}
	b.StopTimer()
	b.ReportMetric(median(gaps), "gap-p50-us")
	b.ReportMetric(float64(len(gaps))/b.Elapsed().Seconds(), "op/s")
}

func median(d []time.Duration) float64 {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return float64(d[len(d)/2]) / float64(time.Microsecond)
}
