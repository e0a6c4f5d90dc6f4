package main

import "fmt"

// target is what we have set ourselves, as a ratio to the floor unless it says otherwise.
type target struct {
	store, who, scenario string
	what                 metric
	bound                float64
	least                bool // at least, not at most
}

// metric picks a figure out of an outcome. It reports 0 where there is none.
type metric struct {
	name string
	of   func(o outcome) float64
}

var (
	toFloor = metric{"x floor", func(o outcome) float64 {
		if o.ToFloor == nil || !o.ToFloor.agrees() {
			return 0
		}
		return o.ToFloor.Median
	}}
	perAcquisition = metric{"commands per acquisition", func(o outcome) float64 { return o.Median.Commands }}
	fairness       = metric{"Jain", func(o outcome) float64 { return o.Median.Jain }}
	heapPerLock    = metric{"bytes of heap per lock", func(o outcome) float64 { return o.Median.Heap }}
	perSecond      = metric{"commands per second", func(o outcome) float64 { return o.Median.PerSecond }}
	cpu30          = metric{"s of client CPU in 30 s", func(o outcome) float64 { return o.Median.CPU30 }}
	micros         = metric{"µs", func(o outcome) float64 { return o.Median.P50 }}
	rate           = metric{"per second", func(o outcome) float64 { return o.Median.Rate }}
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

// targets are those of the project's plan. The floor of Redis' S2 is go-redis.
func targets() (all []target) {
	all = append(all, latencies("redis", "hasp queue", 1.05, 1.5, [3]float64{0.8, 0.8, 0.8}, 0.95)...)
	all = append(all, latencies("redis", "hasp setnx", 1.05, 1.5, [3]float64{1.2, 1.2, 1.2}, 1.2)...)
	all = append(all, latencies("redlock", "hasp", 1, 1.5, [3]float64{1.1, 1.1, 1.1}, 1.5)...)
	all = append(all, latencies("zookeeper", "hasp queue", 1.1, 0.85, [3]float64{1, 1.05, 1.2}, 0.8)...)
	all = append(all, latencies("etcd", "hasp", 1.03, 0.95, [3]float64{1.2, 1.3, 1.5}, 0.95)...)
	all = append(all, latencies("postgres", "hasp table", 1.1, 0.95, [3]float64{1, 1, 1}, 0.95)...)
	all = append(all, latencies("postgres", "hasp advisory", 1.05, 0.95, [3]float64{0.8, 0.8, 0.8}, 0.8)...)
	all = append(all, latencies("mysql", "hasp table", 1.15, 0.9, [3]float64{2, 2, 2}, 2)...)
	all = append(all, latencies("mysql", "hasp getlock", 1.05, 0.95, [3]float64{0.8, 0.8, 0.8}, 0.75)...)
	all = append(all, latencies("file", "hasp", 3, 0.4, [3]float64{}, 0)...)
	for _, n := range []string{"S3-8", "S3-64", "S3-512", "S6"} {
		all = append(all, target{"file", "hasp", n, micros, 60, false})
	}
	for _, t := range []struct {
		store, who string
		commands   float64
		batching   float64 // times the floor
	}{
		{"redis", "hasp queue", 3.2, 50}, // two scripts and a publish, of which the second is within
		{"redlock", "hasp", 14, 0},
		{"zookeeper", "hasp queue", 5, 50},
		{"etcd", "hasp", 5, 50},
		{"postgres", "hasp table", 3, 20},
		{"postgres", "hasp advisory", 2, 0},
		{"mysql", "hasp table", 3, 0},
		{"mysql", "hasp getlock", 2, 0},
	} {
		all = append(all,
			target{t.store, t.who, "S3-64", perAcquisition, t.commands, false},
			target{t.store, t.who, "S3-512", perAcquisition, t.commands, false})
		if t.batching > 0 {
			all = append(all, target{t.store, "hasp, batching", "S4", toFloor, t.batching, true})
		}
	}
	all = append(all, target{"file", "hasp, batching", "S4", rate, 1e6, true})
	for _, t := range []struct{ store, who string }{
		{"redis", "hasp queue"}, {"zookeeper", "hasp queue"}, {"etcd", "hasp"}, {"postgres", "hasp table"}, {"mysql", "hasp table"}, {"file", "hasp"},
	} {
		all = append(all,
			target{t.store, t.who, "S3-64", fairness, 0.99, true},
			target{t.store, t.who, "S5", perSecond, 10, false},
			target{t.store, t.who, "S5", cpu30, 0.3, false},
			target{t.store, t.who, "S5", heapPerLock, 1024, false})
	}
	return all
}

// check says what was reached of a target, in words. measured is false if the run says
// nothing of it.
func (t target) check(tables []table) (figure, verdict string, measured bool) {
	for _, tab := range tables {
		if tab.Store != t.store || tab.Scenario != t.scenario {
			continue
		}
		for _, o := range tab.Outcomes {
			if o.Who != t.who || len(o.Reps) == 0 {
				continue
			}
			v := t.what.of(o)
			if v == 0 && t.what.name == toFloor.name {
				return "repetitions disagree", "unknown", true
			}
			met := v <= t.bound
			if t.least {
				met = v >= t.bound
			}
			verdict = "missed"
			if met {
				verdict = "met"
			}
			return number(v), verdict, o.Median.Error == ""
		}
	}
	return "", "", false
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
