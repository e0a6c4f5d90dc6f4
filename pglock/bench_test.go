package pglock_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp/internal/backends"
)

// The benchmarks run each scenario on the floors and on hasp, on the same server: compare
// within a run. The floors are what any lock on PostgreSQL does at the least: a row that is
// inserted and deleted, each a commit, without expiry, queue or token; and an advisory lock
// and its release.

// taker is a client that takes a lock and returns how to give it back.
type taker func(ctx context.Context, name string) (release func() error, err error)

func rowFloor(b *testing.B) taker {
	pool := benchPool(b)
	if _, err := pool.Exec(b.Context(), "CREATE TABLE IF NOT EXISTS floor (name text PRIMARY KEY, owner text, expires timestamptz)"); err != nil {
		b.Fatal(err)
	}
	return func(ctx context.Context, name string) (func() error, error) {
		_, err := pool.Exec(ctx, "INSERT INTO floor VALUES ($1, $2, now() + interval '10 s')", name, "me")
		return func() error {
			_, err := pool.Exec(ctx, "DELETE FROM floor WHERE name = $1 AND owner = $2", name, "me")
			return err
		}, err
	}
}

func advisoryFloor(b *testing.B) taker {
	pool := benchPool(b)
	return func(ctx context.Context, name string) (func() error, error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		var void any
		err = conn.QueryRow(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", name).Scan(&void)
		return func() error {
			defer conn.Release()
			var held bool
			return conn.QueryRow(ctx, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", name).Scan(&held)
		}, err
	}
}

func benchPool(b *testing.B) *pgxpool.Pool {
	cfg, err := pgxpool.ParseConfig(backends.SharedPostgres(b).URL())
	if err != nil {
		b.Fatal(err)
	}
	cfg.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

func haspTaker(b *testing.B, params ...string) taker {
	c := client(b, storeURL(b, append(params, "prefix=bench_", "connections=64")...))
	return func(ctx context.Context, name string) (func() error, error) {
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(ctx) }, nil
	}
}

// takers runs a scenario on each, the floors before what is compared with them.
func takers(b *testing.B, run func(b *testing.B, start func() taker)) {
	b.Run("floor=row", func(b *testing.B) { run(b, func() taker { return rowFloor(b) }) })
	b.Run("hasp=table", func(b *testing.B) { run(b, func() taker { return haspTaker(b) }) })
	b.Run("floor=advisory", func(b *testing.B) { run(b, func() taker { return advisoryFloor(b) }) })
	b.Run("hasp=advisory/fence=false", func(b *testing.B) {
		run(b, func() taker { return haspTaker(b, "strategy=advisory", "fence=false") })
	})
	b.Run("hasp=advisory", func(b *testing.B) { run(b, func() taker { return haspTaker(b, "strategy=advisory") }) })
	b.Run("hasp=row", func(b *testing.B) { run(b, func() taker { return haspTaker(b, "strategy=row") }) })
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
		var who atomic.Int64
		b.SetParallelism(32) // times GOMAXPROCS
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			name := "own" + strconv.FormatInt(who.Add(1), 10)
			for pb.Next() {
				cycle(b, take, name)
			}
		})
	})
}

// S6: two clients in turns; none asks again before the other has it. A floor is told in
// this process that it is free, and takes it then.
func BenchmarkTurns(b *testing.B) {
	takers(b, func(b *testing.B, start func() taker) {
		const hold = 5 * time.Millisecond
		takes := []taker{start(), start()}
		times := newTimes(b)
		release, err := takes[0](b.Context(), "turns")
		if err != nil {
			b.Fatal(err)
		}
		told := b.Name() == "BenchmarkTurns/floor=row" // it cannot wait
		for i := 1; b.Loop(); i++ {
			got := make(chan func() error, 1)
			take := func() {
				r, err := takes[i%2](b.Context(), "turns")
				if err != nil {
					b.Error(err)
				}
				got <- r
			}
			if !told {
				go take()
			}
			time.Sleep(hold)
			began := time.Now()
			if told {
				if err := release(); err != nil {
					b.Fatal(err)
				}
				take()
			} else {
				go release()
			}
			release = <-got
			times.add(time.Since(began))
		}
		_ = release()
		times.report()
	})
}

// S3: contenders with clients of their own on one name, held 1 ms. The gap is from the
// beginning of a release to the return of the next acquisition.
func BenchmarkContended(b *testing.B) {
	for _, n := range []int{8, 64} {
		for _, strategy := range []string{"table", "advisory"} {
			b.Run(fmt.Sprintf("hasp=%s/n=%d", strategy, n), func(b *testing.B) {
				takes := make([]taker, n)
				for i := range takes {
					takes[i] = haspTaker(b, "strategy="+strategy)
					cycle(b, takes[i], "contended")
				}
				times := newTimes(b)
				var left atomic.Int64
				left.Store(int64(b.N))
				var released time.Time
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
				times.report()
			})
		}
	}
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
