package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Exclusion finds moments at which the certain holds of a lock together exceed its
// capacity, or have different capacities; and grants for which there was no room at any
// moment between call and return.
func Exclusion(h History) []Violation {
	return EachName(h, "exclusion", func(c *CheckRun, ops []*Operation) {
		ops = granted(ops)
		overlaps(c, ops)
		noRoom(c, ops)
	})
}

// overlaps goes through the certain holds in order of their start. A hold that ends at
// the very stamp at which another starts is out of its way: clocks are not that fine.
func overlaps(c *CheckRun, ops []*Operation) {
	var holds []*Operation
	for _, o := range ops {
		if _, _, ok := o.Certain(); ok {
			holds = append(holds, o)
		}
	}
	slices.SortFunc(holds, func(a, b *Operation) int { return cmp.Compare(a.Return, b.Return) })
	var active []*Operation
	for _, o := range holds {
		active = slices.DeleteFunc(active, func(a *Operation) bool {
			_, to, _ := a.Certain()
			return to <= o.Return
		})
		sum, mixed := o.Claim.Units, false
		for _, a := range active {
			sum += a.Claim.Units
			mixed = mixed || a.Claim.Capacity != o.Claim.Capacity
		}
		active = append(active, o)
		switch {
		case mixed:
			c.Report(active, "held under different capacities at once")
		case sum > o.Claim.Capacity:
			c.Report(active, "held by %d at once%s", len(active), counted(sum, o.Claim.Capacity))
		}
	}
}

func counted(sum, capacity int64) string {
	if capacity == whole {
		return ""
	}
	return fmt.Sprintf(": %d of %d units", sum, capacity)
}

// noRoom checks the grants that have no certain hold: lost or killed before anybody
// looked. The store still let them in at some moment between call and return, so at one
// of these moments the others' certain holds must have left room.
func noRoom(c *CheckRun, ops []*Operation) {
	load := newLoad(ops)
	for _, o := range ops {
		if _, _, ok := o.Certain(); !ok && load.least(o.Call, o.Return)+o.Claim.Units > o.Claim.Capacity {
			c.Report(append([]*Operation{o}, covering(ops, o)...),
				"granted although there was no room at any moment from call to return")
		}
	}
}

// covering returns the operations that certainly held during a part of o's acquire.
func covering(ops []*Operation, o *Operation) (out []*Operation) {
	for _, a := range ops {
		if from, to, ok := a.Certain(); ok && from < o.Return && to > o.Call {
			out = append(out, a)
		}
	}
	return out
}

// load is the number of units certainly held, as a function of time.
type load struct {
	at      []Time  // where it changes, ascending
	through []int64 // at that moment: of the holds that neither end nor start at it
	after   []int64 // between that moment and the next
}

func newLoad(ops []*Operation) *load {
	type change struct{ ends, starts int64 }
	changes := map[Time]change{}
	for _, o := range ops {
		if from, to, ok := o.Certain(); ok {
			f, t := changes[from], changes[to]
			f.starts += o.Claim.Units
			t.ends += o.Claim.Units
			changes[from], changes[to] = f, t
		}
	}
	l := &load{at: slices.Sorted(maps.Keys(changes))}
	units := int64(0)
	for _, t := range l.at {
		units -= changes[t].ends
		l.through = append(l.through, units)
		units += changes[t].starts
		l.after = append(l.after, units)
	}
	return l
}

// least returns the smallest load at any moment from a to b.
func (l *load) least(a, b Time) int64 {
	i, _ := slices.BinarySearch(l.at, a) // the first change not before a
	least := int64(0)
	if i > 0 {
		least = l.after[i-1]
	}
	for ; i < len(l.at) && l.at[i] <= b && least > 0; i++ {
		least = min(least, l.through[i]) // never more than on either side of it
	}
	return least
}
