package main

import "fmt"

// target is a goal of the project, as a ratio to the floor unless it says otherwise.
type target struct {
	store, who, scenario string
	what                 metric
	bound                float64
	least                bool // at least, not at most
}

// metric picks a figure out of an outcome. It reports false where there is none.
type metric struct {
	name string
	of   func(o outcome) (float64, bool)
	per  string // a scenario by whose figure of the same contestant it is divided
}

func ofSpan(name string, of func(o outcome) *span) metric {
	return metric{name: name, of: func(o outcome) (float64, bool) {
		if s := of(o); s != nil && s.agrees() {
			return s.Median, true
		}
		return 0, false
	}}
}

func ofMedian(name string, of func(f figures) float64) metric {
	return metric{name: name, of: func(o outcome) (float64, bool) { return of(o.Median), true }}
}

var (
	toFloor        = ofSpan("x floor", func(o outcome) *span { return o.ToFloor })
	rateToFloor    = ofSpan("x floor's rate", func(o outcome) *span { return o.RateTo })
	cpuToFloor     = ofSpan("x floor's client CPU", func(o outcome) *span { return o.CPUTo })
	p99ToFloor     = ofSpan("x floor's p99", func(o outcome) *span { return o.P99To })
	perAcquisition = ofMedian("commands per acquisition", func(f figures) float64 { return f.Commands })
	fairness       = ofMedian("Jain", func(f figures) float64 { return f.Jain })
	inversions     = ofMedian("grants out of order", func(f figures) float64 { return float64(f.Inversions) })
	heapPerLock    = ofMedian("bytes of heap per lock", func(f figures) float64 { return f.Heap })
	heapPerWaiter  = ofMedian("bytes of heap per waiter", func(f figures) float64 { return f.Heap })
	perSecond      = ofMedian("commands per second", func(f figures) float64 { return f.PerSecond })
	cpu30          = ofMedian("s of client CPU in 30 s", func(f figures) float64 { return f.CPU30 })
	micros         = ofMedian("µs", func(f figures) float64 { return f.P50 })
	rate           = ofMedian("per second", func(f figures) float64 { return f.Rate })
	toWarm         = metric{"x S1", func(o outcome) (float64, bool) { return o.Median.P50, o.Median.P50 > 0 }, "S1"}
)

// latencies are the four ratios that every store has: S1, S2, S3 at its three sizes, S6.
func latencies(store, who string, s1, s2 float64, s3 [3]float64, s6 float64) (all []target) {
	at := func(scenario string, bound float64, least bool) {
		if bound > 0 {
			all = append(all, target{store, who, scenario, toFloor, bound, least})
		}
	}
	at("S1", s1, false)
	at("S2", s2, true)
	for i, n := range []string{"S3-8", "S3-64", "S3-512"} {
		at(n, s3[i], false)
	}
	at("S6", s6, false)
	return all
}

// targets are those of the project's plan. The floor of Redis and Redlock is go-redis, by
// which the plan's were measured; what the client library gains counts for us.
func targets() (all []target) {
	all = append(all, latencies("redis", "hasp queue", 1.03, 1.8, [3]float64{0, 0.9, 1}, 0.9)...)
	all = append(all, latencies("redis", "hasp setnx", 1.05, 1.5, [3]float64{1.2, 1.2, 1.2}, 1.2)...)
	all = append(all, latencies("redlock", "hasp", 1, 1.6, [3]float64{0, 1.3, 1.5}, 1.1)...)
	all = append(all, latencies("zookeeper", "hasp queue", 1, 1, [3]float64{0, 1, 1.2}, 0.6)...)
	all = append(all, latencies("etcd", "hasp", 1.03, 2, [3]float64{0, 1.1, 1.15}, 0.65)...)
	all = append(all, latencies("postgres", "hasp table", 0.85, 0.8, [3]float64{1, 1}, 0)...)
	all = append(all, latencies("postgres", "hasp advisory", 1.1, 0.65, [3]float64{1, 1}, 0)...)
	all = append(all, latencies("postgres", "hasp advisory, no token", 0, 0.95, [3]float64{}, 0)...)
	all = append(all, latencies("mysql", "hasp table", 1.05, 0.8, [3]float64{1.3, 1.3}, 0)...)
	all = append(all, latencies("mysql", "hasp getlock", 1.3, 0.7, [3]float64{1.1, 1.1}, 0)...)
	all = append(all, latencies("mysql", "hasp getlock, no token", 1.05, 0, [3]float64{}, 0)...)
	all = append(all, latencies("file", "hasp", 0.6, 1, [3]float64{}, 0)...)
	all = append(all,
		target{"postgres", "hasp table", "S3-512", p99ToFloor, 3, false},
		target{"mysql", "hasp table", "S3-512", p99ToFloor, 5, false},
		target{"file", "hasp", "S3-64", micros, 50, false},
		target{"file", "hasp", "S3-512", micros, 60, false},
		target{"file", "hasp", "S6", micros, 45, false},
		target{"redis", "hasp queue", "S4", toFloor, 1.1, true},
		target{"file", "hasp, local hand-over", "S4", rate, 1e6, true})
	return append(append(all, contended()...), everywhere()...)
}

// contended are the rates at S3's three sizes, the commands per acquisition there, and what
// batching gains; 0 is none.
func contended() (all []target) {
	for _, t := range []struct {
		store, who string
		rates      [3]float64 // to the floor
		commands   [2]float64 // at 64 and at 512
		batching   float64    // times the floor
	}{
		{"redis", "hasp queue", [3]float64{0.98, 0.98, 0.98}, [2]float64{2.05, 2.3}, 50},
		{"redis", "hasp setnx", [3]float64{0.9, 0.9, 0.9}, [2]float64{5, 5}, 0},
		{"redlock", "hasp", [3]float64{0, 0.9, 0.75}, [2]float64{11, 13}, 0},
		{"zookeeper", "hasp queue", [3]float64{0.9, 0.9, 0.8}, [2]float64{5, 5.1}, 50},
		{"etcd", "hasp", [3]float64{0.85, 0.75, 0}, [2]float64{3.1, 3.7}, 50},
		{"postgres", "hasp table", [3]float64{0, 0, 0.8}, [2]float64{3, 3}, 20},
		{"postgres", "hasp advisory", [3]float64{0, 0, 0.9}, [2]float64{2, 2}, 0},
		{"mysql", "hasp table", [3]float64{0, 0, 0.6}, [2]float64{3, 3}, 0},
		{"mysql", "hasp getlock", [3]float64{0, 0, 0.9}, [2]float64{2, 2}, 0},
	} {
		for i, n := range []string{"S3-8", "S3-64", "S3-512"} {
			if t.rates[i] > 0 {
				all = append(all, target{t.store, t.who, n, rateToFloor, t.rates[i], true})
			}
			if i > 0 {
				all = append(all, target{t.store, t.who, n, perAcquisition, t.commands[i-1], false})
			}
		}
		if t.batching > 0 {
			all = append(all, target{t.store, "hasp, local hand-over", "S4", toFloor, t.batching, true})
		}
	}
	return all
}

// everywhere are those that all stores share.
func everywhere() (all []target) {
	for _, t := range []struct {
		store, who string
		fifo       bool
		newName    float64
	}{
		{"redis", "hasp queue", true, 1.1},
		{"redlock", "hasp", false, 1.1},
		{"zookeeper", "hasp queue", true, 1.5},
		{"etcd", "hasp", true, 1.1},
		{"postgres", "hasp table", true, 1.1},
		{"mysql", "hasp table", true, 1.1},
		{"file", "hasp", true, 1.1},
	} {
		all = append(all,
			target{t.store, t.who, "S1", cpuToFloor, 1.1, false},
			target{t.store, t.who, "S3-64", cpuToFloor, 1.3, false},
			target{t.store, t.who, "S1n", toWarm, t.newName, false},
			target{t.store, t.who, "S5", perSecond, 10, false},
			target{t.store, t.who, "S5", cpu30, 0.3, false},
			target{t.store, t.who, "S5", heapPerLock, 1024, false},
			target{t.store, t.who, "waiters", heapPerWaiter, 2048, false},
			target{t.store, t.who, "queue", heapPerWaiter, 2048, false})
		if t.fifo {
			all = append(all,
				target{t.store, t.who, "S3-64", fairness, 0.99, true},
				target{t.store, t.who, "S3-64", inversions, 0, false})
		}
	}
	return all
}

// check says what was reached of a target, in words. measured is false if the run says
// nothing of it.
func (t target) check(tables []table) (figure, verdict string, measured bool) {
	o, found := find(tables, t.store, t.scenario, t.who)
	if !found {
		return "", "", false
	}
	v, known := t.what.of(o)
	if t.what.per != "" && known {
		base, found := find(tables, t.store, t.what.per, t.who)
		if !found {
			return "", "", false
		}
		by, _ := t.what.of(base)
		v, known = v/by, by > 0
	}
	figure = number(v)
	switch {
	case !known:
		return "repetitions disagree", "unknown", true
	case t.least && v >= t.bound, !t.least && v <= t.bound:
		return figure, "met", true
	case figure == number(t.bound): // it would read as if it had been met
		figure = fmt.Sprintf("%.4f", v)
	}
	return figure, "missed", true
}

// find returns a contestant's outcome, if it has figures.
func find(tables []table, store, scenario, who string) (outcome, bool) {
	for _, tab := range tables {
		if tab.Store != store || tab.Scenario != scenario {
			continue
		}
		for _, o := range tab.Outcomes {
			if o.Who == who && len(o.Reps) > 0 && o.Median.Error == "" {
				return o, true
			}
		}
	}
	return outcome{}, false
}

// number prints three digits.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 10_000:
		return fmt.Sprintf("%.1fk", v/1e3)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
