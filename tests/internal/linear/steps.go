package linear

import (
	"cmp"
	"slices"

	"github.com/hasplock/hasp/internal/history"
)

// stepKind is the effect of a step on the lock.
type stepKind string

const (
	grant stepKind = "grant"
	end   stepKind = "end"
	busy  stepKind = "busy answer"
)

// step happens at one moment from from to to, both included.
type step struct {
	kind     stepKind
	op       *history.Operation
	from, to history.Time
	rank     int // of a grant in order of tokens, from 1; 0 where tokens are missing
}

// steps translates the operations on one lock.
func steps(ops []*history.Operation, strictBusy bool) (all []step) {
	last := history.Time(0) // of the busy answers
	if strictBusy {
		for _, o := range unexplained(ops) {
			all = append(all, step{busy, o, o.Call, o.Return, 0})
			last = max(last, o.Return)
		}
	}
	ranks := tokenRanks(ops)
	for _, o := range granted(ops) {
		all = append(all, step{grant, o, o.Call, o.Return, ranks[o]})
		if o.Release == history.Released {
			all = append(all, step{end, o, o.ReleaseCall, o.ReleaseReturn, 0})
			continue
		}
		from := o.Call
		if _, to, ok := o.Certain(); ok {
			from = to
		}
		// The hold may have ended at any time since. But if any explanation works, so does
		// one in which it ends at once: nothing needs it to stay, except a busy answer.
		// Without this bound every lost hold would double the number of ways to try.
		all = append(all, step{end, o, from, max(from, o.Return, last), 0})
	}
	return all
}

// unexplained returns the busy answers that have to be checked. Those that overlap a
// certain hold are explained by it in any case. Those after an acquire of unknown outcome
// may have been caused by its entry, for as long as the store keeps that.
func unexplained(ops []*history.Operation) (out []*history.Operation) {
	var holds []*history.Operation // in order of start
	for _, o := range ops {
		if _, _, ok := o.Certain(); ok {
			holds = append(holds, o)
		}
	}
	slices.SortFunc(holds, func(a, b *history.Operation) int { return cmp.Compare(a.Return, b.Return) })
	latest := make([]history.Time, len(holds)+1) // the last end among the first i
	for i, o := range holds {
		_, to, _ := o.Certain()
		latest[i+1] = max(latest[i], to)
	}
	for _, o := range ops { // in order of Call
		switch o.Outcome {
		case history.Pending, history.Unknown:
			return slices.DeleteFunc(out, func(b *history.Operation) bool { return b.Return >= o.Call })
		case history.Busy:
			begun, _ := slices.BinarySearchFunc(holds, o.Return, func(h *history.Operation, t history.Time) int { return cmp.Compare(h.Return, t) })
			if latest[begun] <= o.Call {
				out = append(out, o)
			}
		}
	}
	return out
}

// tokenRanks numbers the grants in order of their tokens. With tokens the order of grants
// is given, and the search has only the ends to place; without that, a queue of 64
// waiters has too many orders to try. If a token is missing there are no ranks.
func tokenRanks(ops []*history.Operation) map[*history.Operation]int {
	all := granted(ops)
	slices.SortStableFunc(all, func(a, b *history.Operation) int { return cmp.Compare(a.Token, b.Token) })
	if len(all) == 0 || all[0].Token == 0 {
		return nil
	}
	ranks := make(map[*history.Operation]int, len(all))
	for i, o := range all {
		ranks[o] = i + 1
	}
	return ranks
}

// state is the lock between two steps. It is never changed, only replaced.
type state struct {
	holders []*history.Operation // in order of grant
	rank    int                  // of the last grant
}

// apply makes a step, or reports that it is not possible here.
func (s state) apply(x step) (bool, state) {
	switch x.kind {
	case busy:
		return len(s.holders) > 0, s
	case end:
		i := slices.Index(s.holders, x.op)
		if i < 0 {
			return false, s
		}
		return true, state{slices.Concat(s.holders[:i], s.holders[i+1:]), s.rank}
	}
	sum := x.op.Claim.Units
	for _, o := range s.holders {
		if o.Claim.Capacity != x.op.Claim.Capacity {
			return false, s
		}
		sum += o.Claim.Units
	}
	if sum > x.op.Claim.Capacity || x.rank != 0 && x.rank != s.rank+1 {
		return false, s
	}
	return true, state{append(slices.Clip(s.holders), x.op), max(s.rank, x.rank)}
}

// granted keeps the operations that got the lock.
func granted(ops []*history.Operation) (out []*history.Operation) {
	for _, o := range ops {
		if o.Outcome == history.Granted {
			out = append(out, o)
		}
	}
	return out
}
