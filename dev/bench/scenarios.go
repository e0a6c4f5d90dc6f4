package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// scenario is one way to use a lock.
type scenario struct {
	name  string
	title string
	// run is called for every contestant in turn, repetition by repetition.
	run   func(ctx context.Context, m *match) figures
	times int    // so many times the repetitions asked for, of scenarios that take no time; 0 is 1
	once  bool   // one repetition, of ours alone, of those that take long
	rate  bool   // the ratio is of rates, not of times
	store string // the only store that it makes sense for; "" is all
}

var scenarios = []scenario{
	{name: "S1", title: "one goroutine, 16 warm names: lock + unlock", run: uncontended, times: 3},
	{name: "S1n", title: "one goroutine, a name that was never used, each time", run: newNames, times: 2},
	{name: "S2", title: "64 goroutines of one client, each with its own name", run: parallel, times: 2, rate: true},
	{name: "S3-8", title: "8 contenders in 4 processes on one name, held 1 ms", run: crowdOf(8)},
	{name: "S3-64", title: "64 contenders in 8 processes on one name, held 1 ms", run: crowdOf(64)},
	{name: "S3-512", title: "512 contenders in 8 processes on one name, held 1 ms", run: crowdOf(512)},
	{name: "herd", title: "1,000 contenders in 8 processes on one name, held 1 ms", run: crowdOf(1000), store: "zookeeper"},
	{name: "S4", title: "64 goroutines of one client on one name, held for nothing", run: oneName, rate: true},
	{name: "S6", title: "two clients in turns, held 10 ms, neither asks again before the other has it", run: turns, times: 2},
	{name: "S5", title: "10,000 locks of one client, held", run: holding, once: true},
	{name: "names", title: "lock + unlock after so many other names were used", run: manyNames, once: true},
	{name: "waiters", title: "a hand-over with so many goroutines of one client behind it, of which one stands in the store's queue", run: manyWaiters, once: true},
	{name: "queue", title: "a hand-over with so many entries of one session behind it in the store's queue", run: manyEntries, once: true},
}

// match is one repetition of one scenario by one contestant.
type match struct {
	store    store
	endpoint endpoint
	who      contestant
	count    counter // nil: the store has none
	rep      int
	brief    bool // only to see that everything works
	long     bool // growth has all the time it wants
}

// lasts is how long a scenario is measured.
func (m *match) lasts(d time.Duration) time.Duration {
	if m.brief {
		return d / 10
	}
	return d
}

// grows is when growing ends, after d in a run that has half an hour for everything.
func (m *match) grows(d time.Duration) time.Time {
	if m.long {
		d = time.Hour
	}
	return time.Now().Add(m.lasts(d))
}

// names are this match's alone.
func (m *match) name(kind string, i int) string {
	return fmt.Sprintf("%s-%s-%d", kind, strconv.Itoa(m.rep), i)
}

// measure counts the server's commands and our processor time around f, which returns how
// many acquisitions there were.
func (m *match) measure(f func() (int, error)) (fig figures) {
	var before, after int64
	var err error
	if m.count != nil {
		if before, err = m.count(); err != nil {
			return figures{Error: err.Error()}
		}
	}
	cpu, began := processorTime(), time.Now()
	n, err := f()
	took, cpu := time.Since(began), processorTime()-cpu
	if err == nil && m.count != nil {
		after, err = m.count()
	}
	if err != nil {
		return figures{Error: err.Error()}
	}
	if n == 0 {
		return figures{Error: "nothing was acquired"}
	}
	fig.Acquisitions = n
	fig.Rate = float64(n) / took.Seconds()
	fig.Commands = float64(after-before) / float64(n)
	fig.CPU = float64(cpu.Microseconds()) / float64(n)
	return fig
}

func uncontended(ctx context.Context, m *match) figures {
	return alone(ctx, m, func(i int) string { return m.name("s1", i%16) })
}

func newNames(ctx context.Context, m *match) figures {
	return alone(ctx, m, func(i int) string { return m.name("s1n", i) })
}

// alone has one goroutine lock and unlock. What comes first is warming up.
func alone(ctx context.Context, m *match, name func(i int) string) figures {
	c, err := m.who.open(ctx)
	if err != nil {
		return figures{Error: err.Error()}
	}
	defer c.close()
	const warm = 64
	for i := range warm {
		if err := c.cycle(ctx, name(i)); err != nil {
			return figures{Error: err.Error()}
		}
	}
	var took []time.Duration
	until := time.Now().Add(m.lasts(250 * time.Millisecond))
	fig := m.measure(func() (int, error) {
		for i := warm; time.Now().Before(until); i++ {
			began := time.Now()
			if err := c.cycle(ctx, name(i)); err != nil {
				return 0, err
			}
			took = append(took, time.Since(began))
		}
		return len(took), nil
	})
	fig.timings(took)
	return fig
}

func parallel(ctx context.Context, m *match) figures {
	return together(ctx, m, func(i int) string { return m.name("s2", i) })
}

func oneName(ctx context.Context, m *match) figures {
	if m.who.told {
		return passed(ctx, m)
	}
	return together(ctx, m, func(int) string { return m.name("s4", 0) })
}

// together has 64 goroutines of one client lock and unlock, each the name of its number.
func together(ctx context.Context, m *match, name func(i int) string) figures {
	c, err := m.who.open(ctx)
	if err != nil {
		return figures{Error: err.Error()}
	}
	defer c.close()
	round := func(until time.Time) (int, error) {
		// A contestant that starves some of its goroutines would otherwise never end.
		limited, cancel := context.WithDeadline(ctx, until.Add(5*time.Second))
		defer cancel()
		var n atomic.Int64
		var wg sync.WaitGroup
		errs := make(chan error, 64)
		for i := range 64 {
			own := name(i)
			wg.Go(func() {
				for time.Now().Before(until) {
					if err := c.cycle(limited, own); err != nil {
						if limited.Err() == nil {
							errs <- err
						}
						return
					}
					n.Add(1)
				}
			})
		}
		wg.Wait()
		select {
		case err := <-errs:
			return 0, err
		default:
			return int(n.Load()), nil
		}
	}
	if _, err := round(time.Now().Add(m.lasts(100 * time.Millisecond))); err != nil {
		return figures{Error: err.Error()}
	}
	return m.measure(func() (int, error) { return round(time.Now().Add(m.lasts(500 * time.Millisecond))) })
}

// passed is the floor of one name: lock and unlock, one after the other.
func passed(ctx context.Context, m *match) figures {
	return alone(ctx, m, func(int) string { return m.name("s4", 0) })
}

// turns has two clients hold in turns; neither asks again before the other has it. What is
// timed is from the beginning of a release to the other's having it.
func turns(ctx context.Context, m *match) figures {
	var cs [2]client
	for i := range cs {
		c, err := m.who.open(ctx)
		if err != nil {
			return figures{Error: err.Error()}
		}
		defer c.close()
		if err := c.cycle(ctx, m.name("s6", 0)); err != nil {
			return figures{Error: err.Error()}
		}
		cs[i] = c
	}
	var took []time.Duration
	until := time.Now().Add(m.lasts(700 * time.Millisecond))
	fig := m.measure(func() (int, error) {
		unlock, err := cs[0].lock(ctx, m.name("s6", 0))
		for i := 1; err == nil && time.Now().Before(until); i++ {
			got := make(chan grant, 1)
			ask := func() {
				unlock, err := cs[i%2].lock(ctx, m.name("s6", 0))
				got <- grant{unlock, time.Now(), err}
			}
			if !m.who.told {
				go ask()
			}
			time.Sleep(10 * time.Millisecond)
			began := time.Now()
			if err := unlock(); err != nil {
				return 0, err
			}
			if m.who.told {
				ask()
			}
			next := <-got
			took = append(took, next.at.Sub(began))
			unlock, err = next.unlock, next.err
		}
		if err == nil {
			err = unlock()
		}
		return len(took), err
	})
	fig.timings(took)
	fig.Rate = 0 // it is the holding that takes the time
	return fig
}
