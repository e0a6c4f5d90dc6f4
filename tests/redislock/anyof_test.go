package redislock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// device is protected by a name of a choice.
type device struct {
	inside, doubles atomic.Int64
	busy            atomic.Int64 // nanoseconds
}

func (d *device) use(hold time.Duration) {
	if d.inside.Add(1) > 1 {
		d.doubles.Add(1)
	}
	began := time.Now()
	time.Sleep(hold)
	d.busy.Add(int64(time.Since(began)))
	d.inside.Add(-1)
}

// contendForAny has clients, each on a connection for itself, use any of the devices a few times. It
// returns the share of the time in which a device was used, until the first client was done.
func contendForAny(tb testing.TB, url string, clients, times int, hold time.Duration, devices []device) float64 {
	var names []string
	for i := range devices {
		names = append(names, fmt.Sprintf("device%d", i))
	}
	var all sync.WaitGroup
	var share atomic.Value
	begin := make(chan struct{})
	var began time.Time
	var once sync.Once
	for range clients {
		c := testkit.Client(tb, url, hasp.WithTTL(calm))
		all.Go(func() {
			var locks []hasp.Locker
			at := map[string]*device{}
			for i, name := range names {
				locks, at[name] = append(locks, c.Mutex(name)), &devices[i]
			}
			<-begin
			for range times {
				l, err := hasp.LockAny(tb.Context(), locks...)
				if err != nil {
					tb.Error(err)
					return
				}
				at[l.Name()].use(hold)
				if err := l.Release(tb.Context()); err != nil {
					tb.Error(err)
				}
			}
			once.Do(func() { // from here on fewer contend
				var busy int64
				for i := range devices {
					busy += devices[i].busy.Load()
				}
				share.Store(float64(busy) / float64(time.Since(began)) / float64(len(devices)))
			})
		})
	}
	began = time.Now()
	close(begin)
	all.Wait()
	for i := range devices {
		if n := devices[i].doubles.Load(); n > 0 {
			tb.Errorf("%s: %d were inside beside another", names[i], n)
		}
		if devices[i].busy.Load() == 0 {
			tb.Errorf("%s was never used", names[i])
		}
	}
	return share.Load().(float64)
}

// S1: many clients that wait for any of 16 names, each in all queues.
func TestAnyOfSixteen(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	contendForAny(t, server.URL(), 64, 4, 50*time.Millisecond, make([]device, 16))
	c := client(t, server.URL())
	for i := range 16 { // L4: no place is left
		q, err := c.Inspect(t.Context(), fmt.Sprintf("device%d", i))
		if err != nil || len(q.Holders)+len(q.Waiters) > 0 {
			t.Errorf("%+v, %v", q, err)
		}
	}
	// The control: names that are no locks.
	var d device
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { d.use(50 * time.Millisecond) })
	}
	both.Wait()
	if d.doubles.Load() == 0 {
		t.Error("two at once are not noticed")
	}
}

// BenchmarkAnyOfSixteen reports how busy 64 clients keep 16 devices that each has for 100 ms.
func BenchmarkAnyOfSixteen(b *testing.B) {
	server := backends.StartRedis(b, backends.RedisOptions{})
	for b.Loop() {
		share := contendForAny(b, server.URL(), 64, 8, 100*time.Millisecond, make([]device, 16))
		b.ReportMetric(100*share, "%busy")
	}
}

// takeIDs has each of the clients take a slot, all at the same moment, and returns how long it took
// until all had one.
func takeIDs(tb testing.TB, url string, clients, slots int) time.Duration {
	ctx, cancel := context.WithTimeout(tb.Context(), slack)
	defer cancel()
	var all sync.WaitGroup
	begin := make(chan struct{})
	taken := make([]atomic.Int64, slots)
	for range clients {
		c := testkit.Client(tb, url, hasp.WithTTL(calm))
		if _, err := c.Inspect(ctx, "worker/0"); err != nil { // connects
			tb.Fatal(err)
		}
		all.Go(func() {
			<-begin
			l, err := c.Pool("worker", slots).Lock(ctx)
			if err != nil {
				tb.Error(err)
				return
			}
			taken[l.Number].Add(1)
		})
	}
	began := time.Now()
	close(begin)
	all.Wait()
	took, n := time.Since(began), int64(0)
	for i := range taken {
		if taken[i].Load() > 1 {
			tb.Errorf("slot %d was given %d times", i, taken[i].Load())
		}
		n += taken[i].Load()
	}
	if n != int64(clients) {
		tb.Errorf("%d of %d have a slot", n, clients)
	}
	return took
}

// Each of a crowd that starts at once has a number for itself, also if there are as many as numbers.
func TestPoolOfWorkers(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1024, 100} {
		server := backends.StartRedis(t, backends.RedisOptions{})
		t.Logf("100 of %d ids in %s", slots, takeIDs(t, server.URL(), 100, slots))
	}
}

// BenchmarkPoolOfWorkers reports how long it takes until 200 clients have one of 1,024 ids each.
func BenchmarkPoolOfWorkers(b *testing.B) {
	for b.Loop() {
		server := backends.StartRedis(b, backends.RedisOptions{})
		b.ReportMetric(takeIDs(b, server.URL(), 200, 1024).Seconds(), "s/200ids")
	}
}
