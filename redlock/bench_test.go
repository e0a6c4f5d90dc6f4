package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
)

// The benchmarks run each scenario on the floor, on hasp and on redsync, on the same five
// servers: compare within a run. The floor is what any Redlock does at the least, SET NX PX
// and a script that deletes what it finds to be its own, on five servers in parallel.

const floorRelease = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// taker is a client that takes a lock and returns how to give it back.
type taker func(ctx context.Context, name string) (release func() error, err error)

func floorTaker(b *testing.B, nodes []*backends.Redis) taker {
	var clients []rueidis.Client
	for _, n := range nodes {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{n.Addr}, DisableCache: true, ForceSingleClient: true})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(c.Close)
		clients = append(clients, c)
	}
	script := rueidis.NewLuaScript(floorRelease)
	each := func(do func(c rueidis.Client) error) error {
		errs := make([]error, len(clients))
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() { errs[i] = do(c) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	return func(ctx context.Context, name string) (func() error, error) {
		err := each(func(c rueidis.Client) error {
			return c.Do(ctx, c.B().Set().Key(name).Value("me").Nx().Px(10*time.Second).Build()).Error()
		})
		return func() error {
			return each(func(c rueidis.Client) error { return script.Exec(ctx, c, []string{name}, []string{"me"}).Error() })
		}, err
	}
}

func haspTaker(b *testing.B, nodes []*backends.Redis) taker {
	c, err := hasp.Open(b.Context(), urlOf(nodes))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return func(ctx context.Context, name string) (func() error, error) {
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(ctx) }, nil
	}
}

func redsyncTaker(b *testing.B, nodes []*backends.Redis) taker {
	rs := newRedsync(b, nodes)
	return func(ctx context.Context, name string) (func() error, error) {
		m := rs.NewMutex(name, redsync.WithTries(1<<20), redsync.WithExpiry(10*time.Second))
		err := m.LockContext(ctx)
		return func() error {
			if ok, err := m.UnlockContext(ctx); !ok {
				return fmt.Errorf("not unlocked: %w", err)
			}
			return nil
		}, err
	}
}

// sends are the commands a kind sends: servers count those within scripts, too.
var kinds = []struct {
	name  string
	open  func(*testing.B, []*backends.Redis) taker
	sends string
}{
	{"floor=rueidis", floorTaker, "set|evalsha|eval"},
	{"hasp", haspTaker, "evalsha|eval"},
	{"redsync", redsyncTaker, "set|evalsha|eval"},
}

func cycle(b *testing.B, take taker, name string) {
	release, err := take(b.Context(), name)
	if err == nil {
		err = release()
	}
	if err != nil {
		b.Fatal(err)
	}
}

// S1: one goroutine, a few warm names.
func BenchmarkUncontended(b *testing.B) {
	nodes := backends.SharedRedisNodes(b)
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			take := k.open(b, nodes)
			for i := range 32 {
				cycle(b, take, "warm"+strconv.Itoa(i%16))
			}
			times := newTimes(b)
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				cycle(b, take, "warm"+strconv.Itoa(i%16))
				times.add(time.Since(began))
			}
			times.report()
		})
	}
}

// S2: 64 goroutines of one client, each with a name of its own.
func BenchmarkParallel64(b *testing.B) {
	nodes := backends.SharedRedisNodes(b)
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			take := k.open(b, nodes)
			var who atomic.Int64
			b.SetParallelism(32) // times GOMAXPROCS
			b.RunParallel(func(pb *testing.PB) {
				name := "own" + strconv.FormatInt(who.Add(1), 10)
				for pb.Next() {
					cycle(b, take, name)
				}
			})
		})
	}
}

// S6: two clients in turns; none asks again before the other has it. The floor is told in
// this process that it is free, and takes it then.
func BenchmarkTurns(b *testing.B) {
	const hold = 10 * time.Millisecond
	nodes := backends.SharedRedisNodes(b)
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			takes := []taker{k.open(b, nodes), k.open(b, nodes)}
			times := newTimes(b)
			release, err := takes[0](b.Context(), "turns")
			for i := 1; b.Loop(); i++ {
				if err != nil {
					b.Fatal(err)
				}
				next := make(chan struct{})
				got := make(chan func() error, 1)
				go func() {
					if k.name == "floor=rueidis" {
						<-next
					}
					r, err := takes[i%2](b.Context(), "turns")
					if err != nil {
						b.Error(err)
					}
					got <- r
				}()
				time.Sleep(hold)
				began := time.Now()
				go func() {
					if err := release(); err != nil {
						b.Error(err)
					}
					close(next)
				}()
				r := <-got
				times.add(time.Since(began))
				<-next
				release = r
			}
			_ = release()
			times.report()
		})
	}
}

// S3: contenders with clients of their own on one name, held 1 ms. The gap is from the
// beginning of a release to the return of the next acquisition.
func BenchmarkContended(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		for _, k := range kinds[1:] {
			b.Run(fmt.Sprintf("%s/n=%d", k.name, n), func(b *testing.B) { contended(b, n, k.open, k.sends) })
		}
	}
}

func contended(b *testing.B, n int, open func(*testing.B, []*backends.Redis) taker, sends string) {
	nodes := backends.SharedRedisNodes(b)
	takes := make([]taker, n)
	for i := range takes {
		takes[i] = open(b, nodes)
		cycle(b, takes[i], "contended")
	}
	times := newTimes(b)
	var left atomic.Int64
	left.Store(int64(b.N))
	served := make([]int, n)
	var released time.Time
	before := calls(b, nodes, sends)
	b.ResetTimer()
	var wg sync.WaitGroup
	for i, take := range takes {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				release, err := take(b.Context(), "contended")
				if err != nil {
					b.Error(err)
					return
				}
				if !released.IsZero() {
					times.add(time.Since(released))
				}
				served[i]++
				time.Sleep(time.Millisecond)
				released = time.Now()
				if err := release(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(calls(b, nodes, sends)-before)/float64(b.N), "commands/op")
	slices.Sort(served)
	b.ReportMetric(float64(served[0]), "least")
	b.ReportMetric(float64(served[n-1]), "most")
	times.report()
}

// times collects durations for percentiles, which a mean would hide.
type times struct {
	b   *testing.B
	mu  sync.Mutex
	all []time.Duration
}

func newTimes(b *testing.B) *times { return &times{b: b} }

func (t *times) add(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, d)
}

func (t *times) report() {
	slices.Sort(t.all)
	if len(t.all) == 0 {
		return
	}
	t.b.ReportMetric(float64(t.all[len(t.all)/2].Microseconds()), "p50-us")
	t.b.ReportMetric(float64(t.all[len(t.all)*99/100].Microseconds()), "p99-us")
}
