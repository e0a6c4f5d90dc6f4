package linear

import (
	"cmp"
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"
	"github.com/hasplock/hasp/internal/history"
)

// partSize is how many grants Linearizable checks at once, where it can choose. The
// search's memory grows with the square of it.
const partSize = 100

// part is a piece of a lock's record that can be checked separately.
type part struct {
	initial state
	steps   []step
}

// split cuts a record into parts of at least size grants, where an operation certainly holds the
// whole capacity: regardless of the steps before, the lock's state there is "held by that one".
// With the grants in known order (see tokenRanks), it is also known on which side every other step
// must lie:
//
//   - grants up to that operation's before the cut, later ones after it;
//   - the ends of earlier grants before, its own and those of later grants after;
//   - a busy answer does not span it: it would be explained already.
//
// So the record can be explained if and only if all parts can. A step whose times are all on the
// wrong side is found in its part: it would have to come before the cut operation's grant, or after
// its end, and both are in the part and cannot wait for it. Without ranks, or if no client ever
// holds everything, there is one part.
func split(all []step, size int) []part {
	grants, ends, answers := sortSteps(all)
	if len(grants) == 0 || grants[0].rank == 0 {
		return []part{{steps: all}}
	}
	var parts []part
	now, first := part{}, 0
	for i, g := range grants {
		now.steps = append(now.steps, g)
		from, to, held := g.op.Certain()
		if held && g.op.Claim.Units == g.op.Claim.Capacity && i-first >= size {
			at := from + (to-from)/2
			n := sort.Search(len(answers), func(i int) bool { return answers[i].from > at })
			now.steps, answers = append(now.steps, answers[:n]...), answers[n:]
			parts = append(parts, now)
			now, first = part{initial: state{[]*history.Operation{g.op}, g.rank}}, i
		}
		now.steps = append(now.steps, ends[i])
	}
	now.steps = append(now.steps, answers...)
	return append(parts, now)
}

// sortSteps returns the grants in order of rank, the end of each at the same index, and
// the busy answers in order of from.
func sortSteps(all []step) (grants, ends, answers []step) {
	endOf := map[*history.Operation]step{}
	for _, s := range all {
		switch s.kind {
		case grant:
			grants = append(grants, s)
		case end:
			endOf[s.op] = s
		default:
			answers = append(answers, s)
		}
	}
	slices.SortStableFunc(grants, func(a, b step) int { return cmp.Compare(a.rank, b.rank) })
	slices.SortStableFunc(answers, func(a, b step) int { return cmp.Compare(a.from, b.from) })
	for _, g := range grants {
		ends = append(ends, endOf[g.op])
	}
	return grants, ends, answers
}

// model is the lock as porcupine wants it.
func (p part) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return p.initial },
		Step: func(s, input, _ any) (bool, any) { return s.(state).apply(input.(step)) },
		// Asked only about states reached by the same set of steps. These have the same holders, in
		// any order.
		Equal: func(any, any) bool { return true },
	}
}

func (p part) operations() []porcupine.Operation {
	ops := make([]porcupine.Operation, len(p.steps))
	for i, s := range p.steps {
		ops[i] = porcupine.Operation{Input: s, Call: int64(s.from), Return: int64(s.to)}
	}
	return ops
}
