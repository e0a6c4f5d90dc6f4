package mysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
)

// The benchmarks run each scenario on the floor and on hasp, on the same server: compare
// within a run. The floors are what people write by hand: a row that is inserted and
// deleted, each a transaction, without queue, token or renewal; and GET_LOCK.

// taker is a client that takes a lock and returns how to give it back.
type taker func(ctx context.Context, name string) (release func() error, err error)

func floorPool(b *testing.B, m *backends.MariaDB) *sql.DB {
	storeURL(b, m)
	db := pool(b, m.Addr, m.User, m.Password, "locks?interpolateParams=true")
	db.SetMaxIdleConns(64)
	exec(b, db, "CREATE TABLE IF NOT EXISTS floor (name VARBINARY(512) PRIMARY KEY, owner VARBINARY(200)) ENGINE=InnoDB")
	return db
}

func rowFloor(b *testing.B, m *backends.MariaDB) taker {
	db := floorPool(b, m)
	return func(ctx context.Context, name string) (func() error, error) {
		if _, err := db.ExecContext(ctx, "INSERT INTO floor VALUES (?, 'me')", name); err != nil {
			return nil, err
		}
		return func() error {
			_, err := db.ExecContext(ctx, "DELETE FROM floor WHERE name = ? AND owner = 'me'", name)
			return err
		}, nil
	}
}

func getLockFloor(b *testing.B, m *backends.MariaDB) taker {
	db := floorPool(b, m)
	return func(ctx context.Context, name string) (func() error, error) {
		c, err := db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		var got int
		if err := c.QueryRowContext(ctx, "SELECT GET_LOCK(?, 100)", name).Scan(&got); err != nil || got != 1 {
			return nil, fmt.Errorf("not got: %v", err)
		}
		return func() error {
			defer c.Close()
			return c.QueryRowContext(ctx, "SELECT RELEASE_LOCK(?)", name).Scan(&got)
		}, nil
	}
}

func haspTaker(b *testing.B, storeURL string) taker {
	c := client(b, storeURL)
	return func(ctx context.Context, name string) (func() error, error) {
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(ctx) }, nil
	}
}

func takers(b *testing.B, run func(b *testing.B, start func() taker)) {
	m := backends.SharedMariaDB(b)
	base := storeURL(b, m)
	b.Run("floor=rows", func(b *testing.B) { run(b, func() taker { return rowFloor(b, m) }) })
	for _, params := range []string{"strategy=table", "strategy=row"} {
		b.Run(params, func(b *testing.B) { run(b, func() taker { return haspTaker(b, param(base, params)) }) })
	}
	b.Run("floor=GET_LOCK", func(b *testing.B) { run(b, func() taker { return getLockFloor(b, m) }) })
	for _, params := range []string{"strategy=getlock", "strategy=getlock&fence=off"} {
		b.Run(params, func(b *testing.B) { run(b, func() taker { return haspTaker(b, param(base, params)) }) })
	}
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

// S6: two clients in turns; none asks again before the other has it. The floor is told in
// this process that it is free, and takes it then.
func BenchmarkTurns(b *testing.B) {
	m := backends.SharedMariaDB(b)
	base := storeURL(b, m)
	const hold = 15 * time.Millisecond
	b.Run("floor=rows", func(b *testing.B) {
		takes := []taker{rowFloor(b, m), rowFloor(b, m)}
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
	for _, params := range []string{"strategy=table", "strategy=getlock", "strategy=row"} {
		b.Run(params, func(b *testing.B) {
			turns(b, []taker{haspTaker(b, param(base, params)), haspTaker(b, param(base, params))}, hold)
		})
	}
}

func turns(b *testing.B, takes []taker, hold time.Duration) {
	type grant struct {
		release func() error
		at      time.Time
	}
	times := newTimes(b)
	release, err := takes[0](b.Context(), "turns")
	for i := 1; b.Loop(); i++ {
		if err != nil {
			b.Fatal(err)
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
}

// S3: contenders with clients of their own on one name, held 1 ms. The gap is from the
// beginning of a release to the return of the next acquisition.
func BenchmarkContended(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprintf("strategy=table/n=%d", n), func(b *testing.B) {
			base := param(storeURL(b, backends.SharedMariaDB(b)), "connections=1")
			takes := make([]taker, n)
			for i := range takes {
				takes[i] = haspTaker(b, base)
				cycle(b, takes[i], "contended")
			}
			times := newTimes(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			var released time.Time // guarded by the lock
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
		return // a first run of one
	}
	for _, p := range []int{50, 99} {
		t.b.ReportMetric(float64(t.all[len(t.all)*p/100].Microseconds()), fmt.Sprintf("p%d-us", p))
	}
}
