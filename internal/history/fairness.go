package history

import (
	"cmp"
	"slices"
	"time"
)

// Fairness says how evenly and in which order one lock was granted.
type Fairness struct {
	Name   string
	Grants map[string]int // by client; a client that asked and never got it counts with 0

	// Jain is Jain's index over Grants: 1 if all got the same, 1/n if one got everything.
	Jain     float64
	Min, Max int // of Grants

	// Inversions counts the pairs in which the later to enter was the first to hold.
	Inversions int
	// Overtakings names them, for each operation that was overtaken one of those that
	// overtook it.
	Overtakings []Violation
}

// Fair measures each lock of a history, in order of names. Order is checked among certain
// holds: a grant that its client lost before looking proves nothing about when it was
// made. See Options.Slack for slack.
func Fair(h History, slack time.Duration) []Fairness {
	names, byName := h.byName()
	all := make([]Fairness, 0, len(names))
	for _, name := range names {
		f := share(name, byName[name])
		f.order(byName[name], Time(max(slack, 0)))
		all = append(all, f)
	}
	return all
}

func share(name string, ops []*Operation) Fairness {
	f := Fairness{Name: name, Grants: map[string]int{}}
	for _, o := range ops {
		n := 0
		if o.Outcome == Granted {
			n = 1
		}
		f.Grants[o.Client] += n
	}
	sum, squares, first := 0.0, 0.0, true
	for _, n := range f.Grants {
		sum, squares = sum+float64(n), squares+float64(n)*float64(n)
		if first || n < f.Min {
			f.Min = n
		}
		f.Max, first = max(f.Max, n), false
	}
	if squares > 0 {
		f.Jain = sum * sum / (float64(len(f.Grants)) * squares)
	}
	return f
}

// order counts inversions: for each operation, in order of return, those that returned
// more than slack earlier although they had entered later. A Fenwick tree over the ranks
// of entry makes it n log n; soak tests have hundreds of thousands.
func (f *Fairness) order(ops []*Operation, slack Time) {
	var holds []*Operation
	for _, o := range ops {
		if _, _, ok := o.Certain(); ok && o.order() != 0 {
			holds = append(holds, o)
		}
	}
	rank := map[*Operation]int{}
	slices.SortFunc(holds, func(a, b *Operation) int { return cmp.Compare(a.order(), b.order()) })
	for i, o := range holds {
		rank[o] = i + 1
	}
	slices.SortStableFunc(holds, func(a, b *Operation) int { return cmp.Compare(a.Return, b.Return) })

	c := &CheckRun{check: "fifo", name: f.Name, zero: start(ops)}
	tree := make([]int, len(holds)+1)
	next, counted := 0, 0
	var last *Operation // to enter, among those counted
	for _, o := range holds {
		for holds[next].Return+slack < o.Return {
			for i := rank[holds[next]]; i < len(tree); i += i & -i {
				tree[i]++
			}
			if counted++; last == nil || rank[holds[next]] > rank[last] {
				last = holds[next]
			}
			next++
		}
		before := 0 // counted and entered before o
		for i := rank[o]; i > 0; i -= i & -i {
			before += tree[i]
		}
		if n := counted - before; n > 0 {
			f.Inversions += n
			c.Report([]*Operation{o, last}, "overtaken by %d that had entered later", n)
		}
	}
	f.Overtakings = c.found
}
