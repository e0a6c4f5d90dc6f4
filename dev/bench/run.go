package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hasplock/hasp/internal/backends"
)

// plan says what to measure.
type plan struct {
	stores    []store
	scenarios []scenario
	reps      int
	brief     bool
	long      bool
	progress  io.Writer

	counters map[string]counter // by store and contestant
}

// outcome is one contestant in one scenario.
type outcome struct {
	Who     string    `json:"who"`
	Role    role      `json:"role"`
	Plain   string    `json:"plain,omitempty"` // contestant.plain
	Reps    []figures `json:"repetitions"`
	Median  figures   `json:"median"`
	Floor   string    `json:"floor,omitempty"` // whom ToFloor compares with
	ToFloor *span     `json:"to_floor,omitempty"`
	RateTo  *span     `json:"rate_to_floor,omitempty"`
	CPUTo   *span     `json:"client_cpu_to_floor,omitempty"`
	P99To   *span     `json:"p99_to_floor,omitempty"`
	Peer    string    `json:"best_peer,omitempty"`
	ToPeer  *span     `json:"to_best_peer,omitempty"`
}

// table is a scenario on a store.
type table struct {
	Store    string    `json:"store"`
	Unit     string    `json:"unit,omitempty"`
	Scenario string    `json:"scenario"`
	Title    string    `json:"title"`
	Again    string    `json:"again,omitempty"` // when it was measured in the place of the run's
	Outcomes []outcome `json:"outcomes"`
	Rates    bool      `json:"rates,omitempty"` // the ratios are of rates, not of times
}

// run measures store by store, so that only one store's servers run at a time.
func (p *plan) run(ctx context.Context) (tables []table, err error) {
	began, done, all := time.Now(), 0, len(p.stores)*len(p.scenarios)
	for _, s := range p.stores {
		program := &backends.Program{}
		err := program.Run(func() {
			e := s.start(program)
			for _, sc := range p.scenarios {
				done++
				if sc.store != "" && sc.store != s.name {
					continue
				}
				fmt.Fprintf(p.progress, "[%d/%d %s] %s %s: %s\n", done, all, time.Since(began).Round(time.Second), s.name, sc.name, sc.title)
				t, e := p.scenario(ctx, s, e, sc)
				if e != nil {
					err = e
					return
				}
				tables = append(tables, t)
			}
		})
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return tables, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return tables, nil
}

// scenario has the contestants take turns, in another order each time: what disturbs the
// machine for a while disturbs all.
func (p *plan) scenario(ctx context.Context, s store, e endpoint, sc scenario) (table, error) {
	t := table{Store: s.name, Unit: s.unit, Scenario: sc.name, Title: sc.title, Rates: sc.rate}
	reps := p.reps * max(1, sc.times)
	if sc.once {
		reps = 1
	}
	var joined []contestant
	var counters []counter
	for _, c := range s.contestants(e) {
		if c.joins(sc.name) && (!sc.once || c.role == ours) {
			count, err := p.counterOf(s, e, c)
			if err != nil {
				return t, err
			}
			joined, counters = append(joined, c), append(counters, count)
			t.Outcomes = append(t.Outcomes, outcome{Who: c.name, Role: c.role, Plain: c.plain, Floor: cmp.Or(c.waits[sc.name], c.floor)})
		}
	}
	for rep := range reps {
		for i := range joined {
			i = (i + rep) % len(joined)
			m := &match{store: s, endpoint: e, who: joined[i], count: counters[i], rep: p.number(), brief: p.brief, long: p.long}
			f := sc.run(ctx, m)
			if ctx.Err() != nil {
				return t, ctx.Err()
			}
			if f.Error != "" {
				fmt.Fprintf(p.progress, "  %s: %s\n", joined[i].name, f.Error)
			}
			t.Outcomes[i].Reps = append(t.Outcomes[i].Reps, f)
		}
	}
	t.compare()
	return t, nil
}

// counterOf opens a contestant's counter at its first scenario: it keeps a connection, and
// with one for each match the server would be full of them at the end.
func (p *plan) counterOf(s store, e endpoint, c contestant) (counter, error) {
	if s.counter == nil {
		return nil, nil
	}
	key := s.name + "\x00" + c.name
	if p.counters[key] == nil {
		count, err := s.counter(e, c)
		if err != nil {
			return nil, err
		}
		if p.counters == nil {
			p.counters = map[string]counter{}
		}
		p.counters[key] = count
	}
	return p.counters[key], nil
}

var last int

// number makes the names of each match its own.
func (p *plan) number() int { last++; return last }

// value is the figure that a scenario compares.
func (t *table) value(f figures) float64 {
	if t.Rates {
		return f.Rate
	}
	return f.P50
}

// compare sets medians, and the ratios to the floor and to the best peer: each repetition
// with the same repetition of the other's.
func (t *table) compare() {
	for i := range t.Outcomes {
		t.Outcomes[i].Median = medianOf(t.Outcomes[i].Reps)
	}
	best := t.best(peer)
	for i := range t.Outcomes {
		o := &t.Outcomes[i]
		if o.Role == floor {
			o.Floor = ""
			continue
		}
		j := t.first(func(f outcome) bool { return f.Role == floor && (o.Floor == "" || f.Who == o.Floor) })
		if j >= 0 {
			f := t.Outcomes[j]
			o.Floor, o.ToFloor = f.Who, ratio(*o, f, t.value)
			o.RateTo = ratio(*o, f, func(f figures) float64 { return f.Rate })
			o.CPUTo = ratio(*o, f, func(f figures) float64 { return f.CPU })
			o.P99To = ratio(*o, f, func(f figures) float64 { return f.P99 })
		}
		if o.Role == ours && best >= 0 {
			o.Peer, o.ToPeer = t.Outcomes[best].Who, ratio(*o, t.Outcomes[best], t.value)
		}
	}
}

func (t *table) first(is func(outcome) bool) int { return slices.IndexFunc(t.Outcomes, is) }

// best returns the best contestant of a role.
func (t *table) best(r role) int {
	found := -1
	for i, o := range t.Outcomes {
		v := t.value(o.Median)
		if o.Role != r || v == 0 || o.Median.Error != "" {
			continue
		}
		if found < 0 || (v < t.value(t.Outcomes[found].Median)) != t.Rates {
			found = i
		}
	}
	return found
}

func ratio(a, b outcome, value func(figures) float64) *span {
	var all []float64
	for i := range min(len(a.Reps), len(b.Reps)) {
		if a.Reps[i].Error != "" || b.Reps[i].Error != "" {
			continue
		}
		if x, y := value(a.Reps[i]), value(b.Reps[i]); x > 0 && y > 0 {
			all = append(all, x/y)
		}
	}
	if len(all) == 0 {
		return nil
	}
	s := spanOf(all)
	return &s
}

// medianOf is field by field, of the repetitions that have figures.
func medianOf(all []figures) (m figures) {
	good := slices.DeleteFunc(slices.Clone(all), func(f figures) bool { return f.Error != "" })
	if len(good) == 0 {
		if len(all) > 0 {
			m.Error = all[0].Error
		}
		return m
	}
	of := func(field func(f figures) float64) float64 {
		var v []float64
		for _, f := range good {
			v = append(v, field(f))
		}
		return median(v)
	}
	whole := func(field func(f figures) int) int {
		return int(of(func(f figures) float64 { return float64(field(f)) }))
	}
	return figures{
		Steps:        good[0].Steps, // growth is measured once
		Acquisitions: whole(func(f figures) int { return f.Acquisitions }),
		Rate:         of(func(f figures) float64 { return f.Rate }),
		P50:          of(func(f figures) float64 { return f.P50 }),
		P95:          of(func(f figures) float64 { return f.P95 }),
		P99:          of(func(f figures) float64 { return f.P99 }),
		Commands:     of(func(f figures) float64 { return f.Commands }),
		CPU:          of(func(f figures) float64 { return f.CPU }),
		Jain:         of(func(f figures) float64 { return f.Jain }),
		Least:        whole(func(f figures) int { return f.Least }),
		Most:         whole(func(f figures) int { return f.Most }),
		Inversions:   whole(func(f figures) int { return f.Inversions }),
		Heap:         of(func(f figures) float64 { return f.Heap }),
		Goroutines:   of(func(f figures) float64 { return f.Goroutines }),
		PerSecond:    of(func(f figures) float64 { return f.PerSecond }),
		CPU30:        of(func(f figures) float64 { return f.CPU30 }),
		Lost:         whole(func(f figures) int { return f.Lost }),
		Growth:       of(func(f figures) float64 { return f.Growth }),
	}
}
