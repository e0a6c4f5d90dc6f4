package linear

import (
	"slices"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/history"
)

// everything are the promises of the strictest store.
var everything = Options{Fencing: true, FIFO: true, StrictBusy: true}

// made is an operation made by hand, step by step.
type made history.Operation

// past is a history made by hand.
type past []made

func (p past) history() (h history.History) {
	for _, o := range p {
		h = append(h, history.Operation(o))
	}
	return h
}

// got starts a hand-made operation of client on the lock "x": granted.
func got(client string, c history.Claim, call, ret history.Time, token uint64) made {
	return made{ID: client, Client: client, Name: "x", Claim: c, Call: call, Return: ret, Outcome: history.Granted, Token: token}
}

func refused(client string, c history.Claim, call, ret history.Time, how history.Outcome) made {
	return made{ID: client, Client: client, Name: "x", Claim: c, Call: call, Return: ret, Outcome: how}
}

func (o made) released(call, ret history.Time) made {
	o.ReleaseCall, o.ReleaseReturn, o.Release = call, ret, history.Released
	return o
}

func (o made) releaseEnds(call, ret history.Time, how history.Outcome) made {
	o.ReleaseCall, o.ReleaseReturn, o.Release = call, ret, how
	return o
}

func (o made) lost(t history.Time) made { o.Lost = t; return o }

func (o made) held(t history.Time) made { o.Asked, o.LastHeld = true, t; return o }

func (o made) seq(n uint64) made { o.Seq = n; return o }

func (o made) named(n string) made { o.Name = n; return o }

func checksOf(vs []history.Violation) (names []string) {
	for _, v := range vs {
		names = append(names, v.Check)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func texts(vs []history.Violation) string {
	var all []string
	for _, v := range vs {
		all = append(all, v.String())
	}
	return strings.Join(all, "\n")
}

func TestCorrectHistoriesPass(t *testing.T) {
	ex, sh := history.Exclusive(), history.Shared()
	for name, h := range map[string]past{
		"empty":           {},
		"one after other": {got("a", ex, 10, 20, 1).released(30, 40), got("b", ex, 15, 35, 2).released(50, 60)},
		"granted while the release is under way": {
			got("a", ex, 10, 20, 1).released(30, 90), got("b", ex, 15, 35, 2).released(40, 50)},
		"ends and starts at one stamp": {got("a", ex, 10, 20, 1).released(30, 40), got("b", ex, 15, 30, 2).released(50, 60)},
		"two names":                    {got("a", ex, 10, 20, 7).released(90, 95), got("b", ex, 15, 25, 7).released(90, 95).named("y")},
		"readers together, then a writer": {
			got("r1", sh, 10, 20, 1).released(50, 55), got("r2", sh, 12, 22, 2).released(60, 65), got("w", ex, 14, 64, 3).released(70, 75)},
		"semaphore filled to the brim": {
			got("a", history.Permits(2, 3), 10, 20, 1).released(90, 95), got("b", history.Permits(1, 3), 11, 21, 2).released(80, 85),
			got("c", history.Permits(3, 3), 12, 94, 3).released(96, 97)},
		"the capacity may change when no client has it": {
			got("a", history.Permits(1, 3), 10, 20, 1).released(30, 35), got("b", history.Permits(1, 5), 40, 50, 2).released(60, 65)},
		"a stopped holder records its loss after the next grant": {
			got("a", ex, 10, 20, 1).held(40).lost(500).releaseEnds(510, 511, history.NotHeld), got("b", ex, 30, 100, 2).released(200, 210)},
		"lost before anybody looked": {
			func() made { o := got("a", ex, 10, 20, 1).lost(500); o.Asked = true; return o }(),
			got("b", ex, 15, 30, 2).released(200, 210)},
		"a loss told long after a doubtful release": {
			got("a", ex, 10, 20, 1).releaseEnds(40, 50, history.Unknown).lost(200), got("b", ex, 30, 60, 2).released(70, 80)},
		"busy while another asks, with an unknown outcome": {refused("b", ex, 10, 40, history.Busy), refused("a", ex, 20, 25, history.Unknown)},
		"killed while holding":                             {got("a", ex, 10, 20, 1).held(40), got("b", ex, 30, 41, 2).released(50, 60)},
		"release of unknown outcome":                       {got("a", ex, 10, 20, 1).releaseEnds(40, 50, history.Unknown), got("b", ex, 30, 200, 2).released(210, 220)},
		"killed while asking":                              {refused("a", ex, 10, 0, history.Pending), got("b", ex, 30, 41, 5).released(50, 60)},
		"busy because of a hold":                           {got("a", ex, 10, 20, 1).released(50, 60), refused("b", ex, 30, 40, history.Busy)},
		"busy because of a grant coming":                   {got("a", ex, 10, 90, 1).released(95, 99), refused("b", ex, 30, 40, history.Busy)},
		"busy because of a lost holder":                    {got("a", ex, 10, 20, 1).held(25).lost(26), refused("b", ex, 130, 140, history.Busy)},
		"busy because of an unknown holder":                {refused("a", ex, 10, 20, history.Unknown), refused("b", ex, 130, 140, history.Busy)},
		"a failure leaves nothing":                         {refused("a", ex, 10, 20, history.Failed), got("b", ex, 12, 13, 1).released(14, 15)},
		"returned out of order, held in order": {
			got("a", history.Permits(1, 2), 10, 40, 1).released(50, 55), got("b", history.Permits(1, 2), 11, 40, 2).released(60, 65)},
		"tokens grow with gaps": {got("a", ex, 10, 20, 3).released(30, 40), got("b", ex, 41, 42, 1000).released(50, 60)},
	} {
		t.Run(name, func(t *testing.T) {
			if vs := Check(h.history(), everything); len(vs) > 0 {
				t.Errorf("%s", texts(vs))
			}
		})
	}
}

// wrong is a constructed history and the checks that must object, each with a part of its message.
// No other check may object.
type wrong struct {
	h      past
	checks map[string]string
}

func TestWrongHistoriesAreCaught(t *testing.T) {
	ex, sh := history.Exclusive(), history.Shared()
	const explain = "nothing explains this grant"
	for name, w := range map[string]wrong{
		"double grant": {
			past{got("a", ex, 10, 20, 1).released(90, 95), got("b", ex, 30, 40, 2).released(50, 60)},
			map[string]string{"exclusion": "held by 2 at once", "linearizability": explain + ", held by a"}},
		"grant after an unnoticed loss": { // Held() still said yes when the next was in
			past{got("a", ex, 10, 20, 1).held(60).lost(70), got("b", ex, 30, 40, 2).released(80, 90)},
			map[string]string{"exclusion": "held by 2 at once", "linearizability": explain}},
		"loss told after the next grant": {
			past{got("a", ex, 10, 20, 1).lost(70), got("b", ex, 30, 40, 2).released(80, 90)},
			map[string]string{"exclusion": "held by 2 at once", "linearizability": explain}},
		"a grant lost at once had no room": {
			past{got("a", ex, 10, 20, 1).released(90, 95), func() made { o := got("b", ex, 30, 40, 2).lost(45); o.Asked = true; return o }()},
			map[string]string{"exclusion": "no room", "linearizability": explain}},
		"writer with reader": {
			past{got("r", sh, 10, 20, 1).released(90, 95), got("w", ex, 30, 40, 2).released(50, 60)},
			map[string]string{"exclusion": "held by 2 at once", "linearizability": explain}},
		"reader with writer": {
			past{got("w", ex, 10, 20, 1).released(90, 95), got("r", sh, 30, 40, 2).released(50, 60)},
			map[string]string{"exclusion": "held by 2 at once", "linearizability": explain}},
		"semaphore over capacity": {
			past{got("a", history.Permits(2, 3), 10, 20, 1).released(90, 95), got("b", history.Permits(2, 3), 30, 40, 2).released(50, 60)},
			map[string]string{"exclusion": "held by 2 at once: 4 of 3 units", "linearizability": explain}},
		"one permit too many": {
			past{got("a", history.Permits(1, 2), 10, 20, 1).released(90, 95), got("b", history.Permits(1, 2), 11, 21, 2).released(90, 95), got("c", history.Permits(1, 2), 30, 40, 3).released(50, 60)},
			map[string]string{"exclusion": "held by 3 at once: 3 of 2 units", "linearizability": explain + ", held by a, b"}},
		"two capacities at once": {
			past{got("a", history.Permits(1, 3), 10, 20, 1).released(90, 95), got("b", history.Permits(1, 5), 30, 40, 2).released(50, 60)},
			map[string]string{"exclusion": "different capacities", "linearizability": explain}},
		"token reuse": {
			past{got("a", ex, 10, 20, 1).released(30, 40), got("b", ex, 15, 35, 1).released(50, 60)},
			map[string]string{"tokens": "token 1 granted twice"}},
		"token regress after a restart": {
			past{got("a", ex, 10, 20, 9).released(30, 40), got("b", ex, 50, 55, 1).released(60, 65)},
			map[string]string{"tokens": "token 1 granted after token 9", "linearizability": "", "fifo": "overtaken by 1"}},
		"token regress between waiters": { // both had called before either returned
			past{got("a", ex, 10, 20, 9).seq(1).released(30, 40), got("b", ex, 12, 45, 1).seq(2).released(60, 65)},
			map[string]string{"tokens": "token 1 granted after token 9", "linearizability": ""}},
		"token regress from one capacity to another": {
			past{got("a", history.Permits(1, 3), 10, 20, 9).seq(1).released(30, 40), got("b", history.Permits(1, 5), 12, 45, 1).seq(2).released(60, 65)},
			map[string]string{"tokens": "token 1 granted after token 9", "linearizability": ""}},
		"no token": {
			past{got("a", ex, 10, 20, 0).released(30, 40)},
			map[string]string{"tokens": "without a token"}},
		"fifo inversion": {
			past{got("a", ex, 10, 20, 1).seq(5).released(30, 40), got("b", ex, 11, 45, 2).seq(7).released(50, 55), got("c", ex, 12, 60, 3).seq(6).released(70, 75)},
			map[string]string{"fifo": "overtaken by 1"}},
		"overtaken by two": {
			past{got("a", ex, 10, 60, 3).seq(1).released(70, 75), got("b", ex, 11, 20, 1).seq(2).released(30, 35), got("c", ex, 12, 40, 2).seq(3).released(50, 55)},
			map[string]string{"fifo": "overtaken by 2"}},
		"held after the loss": {
			past{got("a", ex, 10, 20, 1).lost(30).held(40)},
			map[string]string{"beliefs": "yes after the loss"}},
		"released after the loss": {
			past{got("a", ex, 10, 20, 1).lost(30).released(40, 50)},
			map[string]string{"beliefs": "success after the loss"}},
		"held after the release": {
			past{got("a", ex, 10, 20, 1).released(30, 40).held(50)},
			map[string]string{"beliefs": "yes after the release"}},
		"released something that had gone to another": { // neither is certain long enough to overlap
			past{got("a", ex, 10, 20, 1).released(60, 65), got("b", ex, 30, 50, 2).held(51)},
			map[string]string{"exclusion": "held by 2 at once", "linearizability": explain}},
		"busy without a holder": {
			past{refused("b", ex, 10, 20, history.Busy), got("a", ex, 30, 40, 1).released(50, 60)},
			map[string]string{"linearizability": "this busy answer: no client holds"}},
		"busy after the release": {
			past{got("a", ex, 30, 40, 1).released(50, 60), refused("b", ex, 70, 80, history.Busy)},
			map[string]string{"linearizability": "busy answer: no client holds"}},
	} {
		t.Run(name, func(t *testing.T) {
			vs := Check(w.h.history(), everything)
			var want []string
			for check, text := range w.checks {
				want = append(want, check)
				if !slices.ContainsFunc(vs, func(v history.Violation) bool { return v.Check == check && strings.Contains(v.Text, text) }) {
					t.Errorf("%s did not say %q", check, text)
				}
			}
			slices.Sort(want)
			if got := checksOf(vs); !slices.Equal(got, want) {
				t.Errorf("checks %v objected; want %v", got, want)
			}
			for _, v := range vs {
				if len(v.Ops) == 0 || !strings.Contains(v.String(), "["+v.Ops[0].ID+"]") {
					t.Errorf("the text does not name the operations: %s", v)
				}
			}
			t.Log(texts(vs))
		})
	}
}

func TestOptionsSayWhatIsJudged(t *testing.T) {
	ex := history.Exclusive()
	tokenless := past{got("a", ex, 10, 20, 0).released(30, 40), got("b", ex, 15, 35, 0).released(50, 60)}
	if vs := Check(tokenless.history(), Options{}); len(vs) > 0 {
		t.Errorf("no tokens promised, none given: %s", texts(vs))
	}
	fake := past{got("a", ex, 10, 20, 4).released(30, 40)}
	if vs := Check(fake.history(), Options{}); len(vs) != 1 || vs[0].Check != "tokens" {
		t.Errorf("a token from a store that promises none: %s", texts(vs))
	}
	unfair := past{got("a", ex, 10, 20, 1).seq(2).released(30, 40), got("b", ex, 11, 45, 2).seq(1).released(50, 55)}
	if vs := Check(unfair.history(), Options{Fencing: true}); len(vs) > 0 {
		t.Errorf("order is not promised: %s", texts(vs))
	}
	if vs := Check(unfair.history(), Options{Fencing: true, FIFO: true, Slack: 25}); len(vs) > 0 {
		t.Errorf("25 ns of slack for an overtaking by 25: %s", texts(vs))
	}
	if vs := Check(unfair.history(), Options{Fencing: true, FIFO: true, Slack: 24}); len(vs) != 1 {
		t.Errorf("24 ns of slack for an overtaking by 25: %s", texts(vs))
	}
	lonely := past{refused("b", ex, 10, 20, history.Busy)}
	if vs := Check(lonely.history(), Options{}); len(vs) > 0 {
		t.Errorf("busy answers are not checked: %s", texts(vs))
	}
	regress := past{got("a", ex, 10, 20, 9).released(30, 40), got("b", ex, 12, 45, 1).released(60, 65)}
	if got := checksOf(Check(regress.history(), Options{Fencing: true, Limit: -1})); !slices.Equal(got, []string{"tokens"}) {
		t.Errorf("checks %v; the search was switched off", got)
	}
}

func TestFairness(t *testing.T) {
	ex := history.Exclusive()
	h := past{ // b entered second and holds last
		got("a", ex, 10, 20, 1).released(30, 31), got("a", ex, 32, 35, 3).released(50, 51), got("a", ex, 52, 60, 4).released(61, 62),
		got("b", ex, 12, 65, 2).released(70, 71), refused("c", ex, 13, 99, history.Pending),
	}
	fs := history.Fair(h.history(), 0)
	if len(fs) != 1 {
		t.Fatalf("%d locks", len(fs))
	}
	f := fs[0]
	if f.Min != 0 || f.Max != 3 || f.Grants["a"] != 3 || f.Grants["b"] != 1 || f.Grants["c"] != 0 || len(f.Grants) != 3 {
		t.Errorf("grants %v, min %d, max %d", f.Grants, f.Min, f.Max)
	}
	if want := 16.0 / (3 * 10); f.Jain < want-1e-9 || f.Jain > want+1e-9 {
		t.Errorf("Jain %v, want %v", f.Jain, want)
	}
	if f.Inversions != 2 || len(f.Overtakings) != 1 || f.Overtakings[0].Ops[0].Client != "b" {
		t.Errorf("%d inversions: %s", f.Inversions, texts(f.Overtakings))
	}
}

// Jain's index at its ends: equal shares, and one that takes everything.
func TestJainBounds(t *testing.T) {
	ex := history.Exclusive()
	even := past{got("a", ex, 10, 20, 1), got("b", ex, 10, 20, 2), got("c", ex, 10, 20, 3)}
	if j := history.Fair(even.history(), 0)[0].Jain; j != 1 {
		t.Errorf("equal shares: %v", j)
	}
	greedy := past{got("a", ex, 10, 20, 1), refused("b", ex, 10, 20, history.Busy), refused("c", ex, 10, 20, history.Busy), refused("d", ex, 10, 20, history.Busy)}
	if j := history.Fair(greedy.history(), 0)[0].Jain; j != 0.25 {
		t.Errorf("one of four has everything: %v", j)
	}
	if f := history.Fair(greedy[1:].history(), 0)[0]; f.Jain != 0 || f.Max != 0 {
		t.Errorf("no client got anything: %+v", f)
	}
}
