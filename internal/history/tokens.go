package history

import (
	"cmp"
	"slices"
)

// Tokens finds fencing tokens that are 0, used twice, or out of the order of grants. Two
// grants are in a known order if one had returned before the other was called, or if
// both certainly held claims that exclude each other, one after the other.
func Tokens(h History) []Violation {
	return EachName(h, "tokens", func(c *CheckRun, ops []*Operation) {
		ops = granted(ops)
		seen := map[uint64]*Operation{}
		for _, o := range ops {
			first := seen[o.Token]
			switch {
			case o.Token == 0:
				c.Report([]*Operation{o}, "granted without a token")
			case first != nil:
				c.Report([]*Operation{first, o}, "token %d granted twice", o.Token)
			default:
				seen[o.Token] = o
			}
		}
		byCalls(c, ops)
		byHolds(c, ops)
	})
}

// NoTokens finds tokens from a store that promises none: a number that does not fence is
// worse than no number.
func NoTokens(h History) []Violation {
	return EachName(h, "tokens", func(c *CheckRun, ops []*Operation) {
		for _, o := range granted(ops) {
			if o.Token != 0 {
				c.Report([]*Operation{o}, "token %d from a store that promises none", o.Token)
			}
		}
	})
}

// byCalls compares each grant with the highest token that had been returned before it
// was asked for. ops are in order of Call.
func byCalls(c *CheckRun, ops []*Operation) {
	returned := slices.Clone(ops)
	slices.SortFunc(returned, func(a, b *Operation) int { return cmp.Compare(a.Return, b.Return) })
	var top *Operation
	for _, o := range ops {
		for len(returned) > 0 && returned[0].Return < o.Call {
			if top == nil || returned[0].Token > top.Token {
				top = returned[0]
			}
			returned = returned[1:]
		}
		regress(c, top, o)
	}
}

// byHolds compares grants whose calls overlapped, which in a queue are most of them.
//
// A and B exclude each other, and A's certain hold ends no later than B's begins. Had B
// been granted first, B's entry would have stood until the end of its certain hold, and A
// could not have held before that. So A was granted first.
func byHolds(c *CheckRun, ops []*Operation) {
	var starts, ends []*Operation
	for _, o := range ops {
		if _, _, ok := o.Certain(); ok {
			starts, ends = append(starts, o), append(ends, o)
		}
	}
	end := func(o *Operation) Time { _, to, _ := o.Certain(); return to }
	slices.SortFunc(starts, func(a, b *Operation) int { return cmp.Compare(a.Return, b.Return) })
	slices.SortFunc(ends, func(a, b *Operation) int { return cmp.Compare(end(a), end(b)) })
	top := map[Claim]*Operation{} // of the holds that have ended, by claim: there are few
	for _, o := range starts {
		for len(ends) > 0 && end(ends[0]) <= o.Return {
			done := ends[0]
			if best := top[done.Claim]; best == nil || done.Token > best.Token {
				top[done.Claim] = done
			}
			ends = ends[1:]
		}
		for claim, best := range top {
			// byCalls checks the pairs whose calls do not overlap.
			if claim.Conflicts(o.Claim) && best.Return >= o.Call {
				regress(c, best, o)
			}
		}
	}
}

// regress accuses if the later of two grants has the lower token. Equal ones were found
// to be used twice, and missing ones missing.
func regress(c *CheckRun, earlier, later *Operation) {
	if earlier != nil && later.Token != 0 && later.Token < earlier.Token {
		c.Report([]*Operation{earlier, later}, "token %d granted after token %d", later.Token, earlier.Token)
	}
}
