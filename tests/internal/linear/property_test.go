package linear

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hasplock/hasp/internal/history"
)

const seeds = 40

// simSlack is how much two answers of the simulated network can overtake each other.
const simSlack = 20

// eachSimulated runs f on simulated histories of every kind of lock.
func eachSimulated(t *testing.T, faults bool, f func(t *testing.T, kind string, seed uint64, h history.History)) {
	for kind, claim := range simKinds {
		t.Run(kind, func(t *testing.T) {
			for seed := range uint64(seeds) {
				f(t, kind, seed, simulate(seed, claim, 2+int(seed%7), 30, faults))
			}
		})
	}
}

func TestSimulatedHistoriesPass(t *testing.T) {
	for _, faults := range []bool{false, true} {
		t.Run(fmt.Sprintf("faults=%v", faults), func(t *testing.T) {
			outcomes := map[history.Outcome]int{}
			eachSimulated(t, faults, func(t *testing.T, kind string, seed uint64, h history.History) {
				o := everything
				if kind != "mutex" {
					o.Slack = simSlack
				}
				if vs := Check(h, o); len(vs) > 0 {
					t.Fatalf("seed %d: %s", seed, texts(vs))
				}
				for i := range h {
					outcomes[h[i].Outcome]++
					outcomes["release "+h[i].Release]++
				}
			})
			// A simulation that never lost or refused anything would prove little.
			need := []history.Outcome{history.Granted, history.Busy, "release " + history.Released}
			if faults {
				need = append(need, history.Unknown, "release "+history.Unknown, "release "+history.NotHeld, "release "+history.Pending)
			}
			for _, n := range need {
				if outcomes[n] < seeds {
					t.Errorf("only %d operations ended with %q", outcomes[n], n)
				}
			}
		})
	}
}

// Without tokens the search has to find the order of grants by itself.
func TestSimulatedHistoriesWithoutTokensPass(t *testing.T) {
	eachSimulated(t, true, func(t *testing.T, kind string, seed uint64, h history.History) {
		if kind == "readers and writers" {
			h = simulate(seed, simKinds[kind], 3, 10, true) // see Linearizable on readers
		}
		for i := range h {
			h[i].Seq, h[i].Token = h[i].Token, 0
		}
		if vs := Check(h, Options{FIFO: true, Slack: simSlack, StrictBusy: true}); len(vs) > 0 {
			t.Fatalf("seed %d: %s", seed, texts(vs))
		}
	})
}

// spoiler adds one violation to a valid history. It reports false if this history offers
// no opportunity.
type spoiler struct {
	checks []string // that must object; others may
	spoil  func(r *rand.Rand, h history.History) (history.History, bool)
}

var spoilers = map[string]spoiler{
	"double grant": {[]string{"exclusion", "linearizability"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		x, ok := pick(r, h, func(o *history.Operation) bool { from, to, _ := o.Certain(); return to-from > 10 })
		if !ok {
			return nil, false
		}
		from, to, _ := x.Certain()
		intruder := made{ID: "intruder", Client: "intruder", Name: x.Name, Claim: history.Claim{Units: x.Claim.Capacity, Capacity: x.Claim.Capacity},
			Call: from + 1, Return: from + 2, Outcome: history.Granted, Token: 1 << 40}
		return append(h, history.Operation(intruder.released(to-2, to-1))), true
	}},
	"belief beyond the next grant": {[]string{"exclusion", "linearizability"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		a, ok := pick(r, h, func(o *history.Operation) bool { return o.Outcome == history.Granted && o.Release != history.Released })
		if !ok {
			return nil, false
		}
		b, ok := pick(r, h, func(o *history.Operation) bool {
			_, _, certain := o.Certain()
			return certain && o.Token > a.Token && o.Claim.Conflicts(a.Claim) && o.Return > a.Return
		})
		if ok {
			_, to, _ := b.Certain()
			a.Asked, a.LastHeld, a.Lost = true, b.Return+1+history.Time(r.Int64N(int64(to-b.Return))), 0
		}
		return h, ok
	}},
	"two capacities": {[]string{"exclusion", "linearizability"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		a, ok := pick(r, h, func(o *history.Operation) bool { return len(overlapping(h, o)) > 0 })
		if ok {
			a.Claim.Capacity++
		}
		return h, ok
	}},
	"token reuse": {[]string{"tokens"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		a, _ := pick(r, h, wasGranted)
		b, ok := pick(r, h, func(o *history.Operation) bool { return wasGranted(o) && o != a })
		if ok {
			a.Token = b.Token
		}
		return h, ok
	}},
	"token regress": {[]string{"tokens", "linearizability"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		a, _ := pick(r, h, wasGranted)
		b, ok := pick(r, h, func(o *history.Operation) bool { return wasGranted(o) && o.Call > a.Return })
		if ok {
			a.Token, b.Token = b.Token, a.Token
		}
		return h, ok
	}},
	"token regress while both wait": {[]string{"tokens", "linearizability"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		a, _ := pick(r, h, isCertain)
		b, ok := pick(r, h, func(o *history.Operation) bool {
			_, to, _ := a.Certain()
			return isCertain(o) && o.Return >= to && o.Call < a.Return && o.Claim.Conflicts(a.Claim)
		})
		if ok {
			a.Token, b.Token = b.Token, a.Token
		}
		return h, ok
	}},
	"missing token": {[]string{"tokens"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		a, ok := pick(r, h, wasGranted)
		if ok {
			a.Token = 0
		}
		return h, ok
	}},
	"overtaking": {[]string{"fifo"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		a, _ := pick(r, h, isCertain)
		b, ok := pick(r, h, func(o *history.Operation) bool { return isCertain(o) && o.Return > a.Return+simSlack })
		if ok {
			a.Seq, b.Seq = b.Token, a.Token
		}
		return h, ok
	}},
	"success after the loss": {[]string{"beliefs"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		a, ok := pick(r, h, func(o *history.Operation) bool { return o.Release == history.Released })
		if ok {
			a.Lost = a.ReleaseCall - 1
		}
		return h, ok
	}},
	"held again": {[]string{"beliefs"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		a, ok := pick(r, h, func(o *history.Operation) bool { return o.Outcome == history.Granted && o.Lost > 0 })
		if ok {
			a.Asked, a.LastHeld = true, a.Lost+1
		}
		return h, ok
	}},
	"busy without a holder": {[]string{"linearizability"}, func(r *rand.Rand, h history.History) (history.History, bool) {
		return append(h, history.Operation(refused("early", h[0].Claim, 1, 2, history.Busy))), true // simulations begin later
	}},
}

func wasGranted(o *history.Operation) bool { return o.Outcome == history.Granted }

func isCertain(o *history.Operation) bool { _, _, ok := o.Certain(); return ok }

func overlapping(h history.History, o *history.Operation) (out []*history.Operation) {
	from, to, ok := o.Certain()
	for i := range h {
		if f, t, certain := h[i].Certain(); ok && certain && &h[i] != o && f < to && t > from {
			out = append(out, &h[i])
		}
	}
	return out
}

// pick chooses one of the operations that fit. If none does it returns an empty one.
func pick(r *rand.Rand, h history.History, fits func(*history.Operation) bool) (*history.Operation, bool) {
	for _, i := range r.Perm(len(h)) {
		if fits(&h[i]) {
			return &h[i], true
		}
	}
	return &history.Operation{}, false
}

func TestSpoiledHistoriesFail(t *testing.T) {
	for name, s := range spoilers {
		t.Run(name, func(t *testing.T) {
			spoiled := 0
			eachSimulated(t, true, func(t *testing.T, kind string, seed uint64, h history.History) {
				h, ok := s.spoil(rand.New(rand.NewPCG(seed, 2)), slices.Clone(h))
				if !ok {
					return
				}
				spoiled++
				o := everything
				o.Slack = simSlack
				vs := Check(h, o)
				for _, check := range s.checks {
					if !slices.Contains(checksOf(vs), check) {
						t.Fatalf("seed %d: %s did not object; the violations: %s", seed, check, texts(vs))
					}
				}
				for _, v := range vs {
					if len(v.Ops) == 0 {
						t.Fatalf("seed %d: no operation is named: %s", seed, v)
					}
				}
			})
			if spoiled < seeds/2 {
				t.Errorf("only %d histories could be spoiled", spoiled)
			}
		})
	}
}

// operations are those of the one lock, in order of Call.
func operations(h history.History) (all []*history.Operation) {
	history.EachName(h, "none", func(_ *history.CheckRun, ops []*history.Operation) { all = ops })
	return all
}

func explained(parts []part) bool {
	for _, p := range parts {
		if !decide(&history.CheckRun{}, p, defaultLimit) {
			return false
		}
	}
	return true
}

// A busy answer belongs to the part that it was given in: in the one before, the hold at
// which the record was cut would explain it.
func TestBusyAfterACut(t *testing.T) {
	ex := history.Exclusive()
	h := past{
		got("a", ex, 10, 20, 1).released(30, 40), got("b", ex, 50, 60, 2).released(70, 80),
		refused("c", ex, 90, 100, history.Busy), got("d", ex, 110, 120, 3).released(130, 140),
	}
	parts := split(steps(operations(h.history()), true), 1)
	if len(parts) != 3 || explained(parts) {
		t.Errorf("%d parts, and none objects to the busy answer", len(parts))
	}
}

// However a record is cut, the parts say what the whole says.
func TestSplitChangesNoVerdict(t *testing.T) {
	cuts, verdicts := 0, map[bool]int{}
	eachSimulated(t, true, func(t *testing.T, kind string, seed uint64, h history.History) {
		r := rand.New(rand.NewPCG(seed, 3))
		for _, name := range []string{"", "belief beyond the next grant", "token regress", "busy without a holder"} {
			h, ok := slices.Clone(h), true
			if name != "" {
				h, ok = spoilers[name].spoil(r, h)
			}
			if !ok {
				continue
			}
			all := steps(operations(h), true)
			whole, parts := explained([]part{{steps: all}}), split(all, 1)
			if got := explained(parts); got != whole {
				t.Fatalf("seed %d, %q: in %d parts %v, as a whole %v", seed, name, len(parts), got, whole)
			}
			cuts += len(parts) - 1
			verdicts[whole]++
		}
	})
	if cuts < 1000 || verdicts[true] < seeds || verdicts[false] < seeds {
		t.Errorf("%d cuts, verdicts %v: too few to prove anything", cuts, verdicts)
	}
}

func TestNoAnswerInTimeIsAViolation(t *testing.T) {
	h := simulate(1, simKinds["readers and writers"], 16, 200, true)
	for i := range h {
		h[i].Token = 0
	}
	vs := Linearizable(h, true, 1)
	if len(vs) != 1 || len(vs[0].Ops) != 0 || vs[0].Text[:9] != "undecided" {
		t.Errorf("%s", texts(vs))
	}
}
