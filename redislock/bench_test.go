package redislock_test

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
)

// The benchmarks run each scenario on the floor and on hasp, on the same server: compare
// within a run. The floor is what any lock on Redis does at the least, SET NX PX and a
// script that deletes what it finds to be its own, without queue, token or renewal.

const floorRelease = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// taker is a client that takes a lock and returns how to give it back.
type taker func(ctx context.Context, name string) (release func() error, err error)

func goRedisFloor(b *testing.B, server *backends.Redis) taker {
	c := redis.NewClient(&redis.Options{Addr: server.Addr})
	b.Cleanup(func() { c.Close() })
	script := redis.NewScript(floorRelease)
	return func(ctx context.Context, name string) (func() error, error) {
		if ok, err := c.SetNX(ctx, name, "me", 10*time.Second).Result(); err != nil || !ok {
			return nil, fmt.Errorf("not free: %v", err)
		}
		return func() error { return script.Run(ctx, c, []string{name}, "me").Err() }, nil
	}
}

func rueidisFloor(b *testing.B, server *backends.Redis) taker {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	script := rueidis.NewLuaScript(floorRelease)
	return func(ctx context.Context, name string) (func() error, error) {
		if err := c.Do(ctx, c.B().Set().Key(name).Value("me").Nx().Px(10*time.Second).Build()).Error(); err != nil {
			return nil, err
		}
		return func() error { return script.Exec(ctx, c, []string{name}, []string{"me"}).Error() }, nil
	}
}

func haspTaker(b *testing.B, storeURL string) taker {
	c, err := hasp.Open(b.Context(), storeURL)
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

func takers(b *testing.B, run func(b *testing.B, start func() taker)) {
	server := backends.SharedRedis(b)
	b.Run("floor=goredis", func(b *testing.B) { run(b, func() taker { return goRedisFloor(b, server) }) })
	b.Run("floor=rueidis", func(b *testing.B) { run(b, func() taker { return rueidisFloor(b, server) }) })
	b.Run("hasp", func(b *testing.B) { run(b, func() taker { return haspTaker(b, server.URL()) }) })
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
	takers(b, func(b *testing.B, start func() taker) {
		take := start()
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

// S2: 64 goroutines of one client, each with a name of its own.
func BenchmarkParallel64(b *testing.B) {
	takers(b, func(b *testing.B, start func() taker) {
		take := start()
		var next, who atomic.Int64
		b.SetParallelism(32) // times GOMAXPROCS
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			name := "own" + strconv.FormatInt(who.Add(1), 10)
			for pb.Next() {
				cycle(b, take, name)
				next.Add(1)
			}
		})
	})
}

// S6: two clients in turns; none asks again before the other has it. The floor is told in
// this process that it is free, and takes it then.
func BenchmarkTurns(b *testing.B) {
	server := backends.SharedRedis(b)
	hold := 5 * time.Millisecond
	b.Run("floor=goredis", func(b *testing.B) {
		takes := []taker{goRedisFloor(b, server), goRedisFloor(b, server)}
		times := newTimes(b)
		release, _ := takes[0](b.Context(), "turns")
		for i := 1; b.Loop(); i++ {
			time.Sleep(hold)
			began := time.Now()
			if err := release(); err != nil {
				b.Fatal(err)
			}
			release, _ = takes[i%2](b.Context(), "turns")
			times.add(time.Since(began))
		}
		_ = release()
		times.report()
	})
	b.Run("hasp", func(b *testing.B) {
		takes := []taker{haspTaker(b, server.URL()), haspTaker(b, server.URL())}
		times := newTimes(b)
		release, err := takes[0](b.Context(), "turns")
		for i := 1; b.Loop(); i++ {
			if err != nil {
				b.Fatal(err)
			}
			type grant struct {
				release func() error
				at      time.Time
			}
			got := make(chan grant, 1)
			go func() {
				r, err := takes[i%2](b.Context(), "turns")
				at := time.Now() // here, and not when the benchmark's own goroutine has heard of it
				if err != nil {
					b.Error(err)
				}
				got <- grant{r, at}
			}()
			time.Sleep(hold)
			began := time.Now()
			err = release()
			next := <-got
			times.add(next.at.Sub(began))
			release = next.release
		}
		_ = release()
		times.report()
	})
}

var crowds = []int{8, 64, 512}

// S3: contenders with clients of their own on one name, held 1 ms. The gap is from the
// beginning of a release to the return of the next acquisition. The floor passes the turn
// in this process, and does one after the other.
func BenchmarkContended(b *testing.B) {
	for _, n := range crowds {
		b.Run(fmt.Sprintf("floor=goredis/n=%d", n), func(b *testing.B) {
			server := backends.StartRedis(b, backends.RedisOptions{})
			takes := make([]taker, n)
			for i := range takes {
				takes[i] = goRedisFloor(b, server)
				cycle(b, takes[i], "contended")
			}
			times := newTimes(b)
			release, err := takes[0](b.Context(), "contended")
			for i := 1; b.Loop(); i++ {
				time.Sleep(time.Millisecond)
				began := time.Now()
				if err == nil {
					err = release()
				}
				if err == nil {
					release, err = takes[i%n](b.Context(), "contended")
				}
				if err != nil {
					b.Fatal(err)
				}
				times.add(time.Since(began))
			}
			_ = release()
			times.report()
		})
		b.Run(fmt.Sprintf("hasp/n=%d", n), func(b *testing.B) { contended(b, n) })
	}
}

func contended(b *testing.B, n int) {
	server := backends.StartRedis(b, backends.RedisOptions{})
	takes := make([]taker, n)
	for i := range takes {
		takes[i] = haspTaker(b, server.URL()+"?dial_timeout=1m")
		cycle(b, takes[i], "contended")
	}
	times := newTimes(b)
	var left atomic.Int64
	left.Store(int64(b.N))
	var released time.Time // written and read by holders alone
	before := scripts(b, server)
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, take := range takes {
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
				time.Sleep(time.Millisecond)
				released = time.Now()
				if err := release(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(scripts(b, server)-before)/float64(b.N), "scripts/op")
	times.report()
}

// S5: ten thousand locks of one client, held for 30 s. An operation is all of that.
func BenchmarkHeld(b *testing.B) {
	const locks, ttl = 10000, 10 * time.Second
	server := backends.StartRedis(b, backends.RedisOptions{})
	c, err := hasp.Open(b.Context(), server.URL(), hasp.WithTTL(ttl))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	before := heap()
	leases := make([]*hasp.Lease, locks)
	for i := range leases {
		if leases[i], err = c.Mutex("held" + strconv.Itoa(i)).Lock(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	perLock := float64(heap()-before) / locks
	for b.Loop() {
		calls, cpu, began := scripts(b, server), cpuTime(b), time.Now()
		time.Sleep(3 * ttl)
		seconds := time.Since(began).Seconds()
		b.ReportMetric(float64(scripts(b, server)-calls)/seconds, "scripts/s")
		b.ReportMetric((cpuTime(b)-cpu).Seconds()/seconds*30, "cpu-s/30s")
	}
	b.ReportMetric(perLock, "heap-B/lock")
	for _, l := range leases {
		if !l.Held() {
			b.Fatal(l.Err())
		}
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

var evalCalls = regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+)`)

// scripts is how many script calls the server has served.
func scripts(tb testing.TB, server *backends.Redis) int {
	tb.Helper()
	info, err := server.Do("INFO", "commandstats")
	if err != nil {
		tb.Fatal(err)
	}
	n := 0
	for _, m := range evalCalls.FindAllStringSubmatch(info, -1) {
		calls, _ := strconv.Atoi(m[1])
		n += calls
	}
	return n
}

// times collects durations for percentiles, which a mean would hide.
type times struct {
	b   *testing.B
	all []time.Duration
}

func newTimes(b *testing.B) *times { return &times{b: b} }

func (t *times) add(d time.Duration) { t.all = append(t.all, d) }

func (t *times) report() {
	slices.Sort(t.all)
	if len(t.all) == 0 {
		return
	}
	t.b.ReportMetric(float64(t.all[len(t.all)/2].Microseconds()), "p50-us")
	t.b.ReportMetric(float64(t.all[len(t.all)*99/100].Microseconds()), "p99-us")
}
