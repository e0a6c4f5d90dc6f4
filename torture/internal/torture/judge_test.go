//go:build unix

package torture

import (
	"errors"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/history"
)

const second = history.Time(time.Second)

// granted is a hold that asked, and was released; times are in seconds.
func granted(client string, call, ret, held, release int, token uint64) history.Operation {
	return history.Operation{
		ID: client, Client: client, Name: "x", Claim: history.Exclusive(), Call: history.Time(call) * second, Return: history.Time(ret) * second,
		Outcome: history.Granted, Token: token, Asked: true, LastHeld: history.Time(held) * second,
		ReleaseCall: history.Time(release) * second, ReleaseReturn: history.Time(release)*second + 1, Release: history.Released,
	}
}

func lost(o history.Operation, at int) history.Operation {
	o.Lost, o.Release = history.Time(at)*second, history.NotHeld
	return o
}

func TestOverlaps(t *testing.T) {
	b := granted("b", 2, 20, 24, 25, 2)
	for name, c := range map[string]struct {
		a    history.Operation
		want Overlaps
	}{
		"one after the other":        {granted("a", 1, 5, 9, 10, 1), Overlaps{}},
		"stopped beyond the grant":   {lost(granted("a", 1, 5, 10, 31, 1), 30), Overlaps{InFlight: 1}},
		"told before the grant":      {lost(granted("a", 1, 5, 10, 21, 1), 19), Overlaps{Told: 1}},
		"still held after the grant": {lost(granted("a", 1, 5, 22, 31, 1), 30), Overlaps{Broken: 1}},
		"released after the grant":   {granted("a", 1, 5, 10, 22, 1), Overlaps{Broken: 1}},
	} {
		v := &Verdict{}
		v.measure(history.History{c.a, b}, disturbed{}, disturbed{}, nil, driver.Traits{FIFO: true})
		if v.Overlaps != c.want {
			t.Errorf("%s: %+v, want %+v", name, v.Overlaps, c.want)
		}
		if broken := c.a.Release == history.Released && c.want.Broken > 0; (v.FalseEnds > 0) != broken {
			t.Errorf("%s: %d false ends", name, v.FalseEnds)
		}
	}
}

// A verdict of a lock that keeps its promises says with the number of overlaps that they break none.
func TestOverlapsAreExplained(t *testing.T) {
	kept := (&Verdict{Overlaps: Overlaps{InFlight: 200, Told: 24}}).Text()
	if !strings.Contains(kept, "224, which break no promise") || !strings.Contains(kept, "two held at once     none") {
		t.Error(kept)
	}
	if broken := (&Verdict{Overlaps: Overlaps{Broken: 3}}).Text(); !strings.Contains(broken, "two held at once     3") || strings.Contains(broken, "no promise") {
		t.Error(broken)
	}
}

// Another was granted the lock while its holder, which nothing had disturbed, was within its TTL:
// that is broken, also if the holder is told something else later. Disturbed, or after the TTL, it is not.
func TestTakenWithinTheTTL(t *testing.T) {
	const ttl = 6
	asked := func(call, ret int) history.Operation { return lost(granted("a", call, ret, 21, 24, 1), 23) }
	for name, c := range map[string]struct {
		a         history.Operation
		b         history.Operation
		disturbed Stall
		want      Overlaps
	}{
		"taken":                               {asked(19, 20), granted("b", 19, 22, 24, 25, 2), Stall{}, Overlaps{Broken: 1}},
		"taken after a long wait":             {asked(1, 20), granted("b", 2, 22, 24, 25, 2), Stall{}, Overlaps{Broken: 1}},
		"taken, and told in the end":          {lost(granted("a", 19, 20, 21, 31, 1), 30), granted("b", 19, 22, 24, 25, 2), Stall{}, Overlaps{Broken: 1}},
		"taken, and told by its release":      {asked(19, 20), granted("b", 21, 22, 24, 25, 2), Stall{Client: "c", From: 21 * second, To: 22 * second}, Overlaps{Broken: 1}},
		"its TTL was over":                    {asked(14, 15), granted("b", 16, 22, 24, 25, 2), Stall{}, Overlaps{InFlight: 1}},
		"perhaps over: the answer waited":     {asked(1, 16), granted("b", 16, 22, 24, 25, 2), Stall{}, Overlaps{InFlight: 1}},
		"it was disturbed":                    {asked(19, 20), granted("b", 19, 22, 24, 25, 2), Stall{Client: "a", From: 21 * second, To: 22 * second}, Overlaps{InFlight: 1}},
		"the machine was":                     {asked(19, 20), granted("b", 19, 22, 24, 25, 2), Stall{Client: "", From: 21 * second, To: 22 * second}, Overlaps{InFlight: 1}},
		"the other's grant was late":          {asked(19, 20), granted("b", 14, 22, 24, 25, 2), Stall{Client: "b", From: 15 * second, To: 21 * second}, Overlaps{InFlight: 1}},
		"the other was late, and asked later": {asked(19, 20), granted("b", 21, 22, 24, 25, 2), Stall{Client: "b", From: 15 * second, To: 21 * second}, Overlaps{Broken: 1}},
		"told before":                         {lost(granted("a", 19, 20, 21, 23, 1), 21), granted("b", 19, 22, 24, 25, 2), Stall{}, Overlaps{Told: 1}},
	} {
		v, d := &Verdict{TTL: ttl}, disturbed{}
		d.add(c.disturbed)
		v.measure(history.History{c.a, c.b}, d, disturbed{}, nil, driver.Traits{})
		if v.conclude(); v.Overlaps != c.want || (v.Result == BrokenResult) != (c.want.Broken > 0) {
			t.Errorf("%s: %+v, want %+v; %s", name, v.Overlaps, c.want, v.Broken)
		}
	}
}

// An adapter may say that it was granted the lock long after it was. It was not before the holder
// whom it found had released.
func TestTakenFromAnAdapter(t *testing.T) {
	asked := func(call, ret int) history.Operation { return lost(granted("a", call, ret, 21, 24, 1), 23) }
	b := granted("b", 19, 22, 24, 25, 2)
	for name, c := range map[string]struct {
		before history.Operation // of c
		a      history.Operation
		want   Overlaps
	}{
		"asked within the TTL":                       {granted("c", 1, 2, 3, 4, 1), asked(17, 20), Overlaps{Broken: 1}},
		"asked before it, and released within":       {granted("c", 1, 2, 16, 17, 1), asked(5, 20), Overlaps{Broken: 1}},
		"asked before it, and released before":       {granted("c", 1, 2, 14, 15, 1), asked(5, 20), Overlaps{InFlight: 1}},
		"of a holder that may have come after it":    {granted("c", 6, 8, 16, 17, 1), asked(5, 20), Overlaps{InFlight: 1}},
		"of a holder that has released, but another": {granted("c", 1, 2, 3, 4, 1), asked(5, 20), Overlaps{InFlight: 1}},
	} {
		v := &Verdict{TTL: 6, Adapter: "x"}
		v.measure(history.History{c.before, c.a, b}, disturbed{}, disturbed{}, nil, driver.Traits{})
		if v.Overlaps != c.want {
			t.Errorf("%s: %+v, want %+v", name, v.Overlaps, c.want)
		}
	}
}

func TestTrialOrder(t *testing.T) {
	for want, order := range map[int][]int{0: {1, 2, 3, 4, 5}, 1: {1, 2, 3, 5, 4}, 4: {5, 1, 2, 3, 4}} {
		if n := overtakenIn(order); n != want {
			t.Errorf("%d overtaken in %v, want %d", n, order, want)
		}
	}
	for _, c := range []struct {
		trial      *trial
		inversions *int
		failed     bool
	}{
		{&trial{promised: true, rounds: 5, unordered: 3, overtaken: 4, releases: 20}, new(4), false},
		{&trial{promised: true, rounds: 5, unordered: 2, overtaken: 4, releases: 20}, new(int), false},
		{&trial{rounds: 0, releases: 20}, nil, false},
		{&trial{releases: 3}, nil, true},
	} {
		v := &Verdict{}
		c.trial.addTo(v)
		if (v.Inversions == nil) != (c.inversions == nil) || c.inversions != nil && *v.Inversions != *c.inversions || (v.TrialFailed != "") != c.failed {
			t.Errorf("%+v: %v, %q", c.trial, v.Inversions, v.TrialFailed)
		}
	}
}

// A loss that is told to a process that ran, long after the next grant, is a broken promise.
func TestToldLate(t *testing.T) {
	const ttl = 6
	b := granted("b", 2, 20, 50, 51, 2)
	for name, c := range map[string]struct {
		at      int // when a was told
		adapter string
		bound   driver.Liveness
		cut     Stall // of a's network
		want    int
	}{
		"before the grant":                 {19, "", 0, Stall{}, 0},
		"as late as an unnoticed stall":    {21, "", 0, Stall{}, 0},
		"later":                            {22, "", 0, Stall{}, 1},
		"later, and cut off: by its clock": {22, "", 0, Stall{Client: "a", From: 10 * second, To: 22 * second}, 1},
		"bound to a connection":            {32, "", driver.ConnectionBound, Stall{}, 0},
		"and later than its bound":         {33, "", driver.ConnectionBound, Stall{}, 1},
		"an adapter that is slow":          {26, "x", 0, Stall{}, 0},
		"an adapter that does not tell":    {27, "x", 0, Stall{}, 1},
		"an adapter that cannot ask":       {27, "x", 0, Stall{Client: "a", From: 10 * second, To: 22 * second}, 0},
	} {
		v, d := &Verdict{TTL: ttl, Adapter: c.adapter}, disturbed{}
		d.add(c.cut)
		a := lost(granted("a", 1, 5, 10, c.at+1, 1), c.at)
		v.measure(history.History{a, b}, d, disturbed{}, nil, driver.Traits{Liveness: c.bound})
		if v.conclude(); v.ToldLate != c.want || (v.Result == BrokenResult) != (c.want > 0) || len(v.Margins) != 1 {
			t.Errorf("%s: %d told late, %s, margins %v", name, v.ToldLate, v.Broken, v.Margins)
		}
	}
}

// Where locks are bound to a connection, a holder may believe until it is told that its connection
// has ended, and no longer than the bound.
func TestCutOff(t *testing.T) {
	b := granted("b", 2, 20, 24, 25, 2)
	notHeld := granted("a", 1, 5, 22, 23, 1)
	notHeld.Release = history.NotHeld
	for name, c := range map[string]struct {
		a    history.Operation
		f    Fault
		want Overlaps
	}{
		"told in time":         {lost(granted("a", 1, 5, 22, 24, 1), 23), Fault{Kind: Cut, Client: "a", From: 15 * second, To: 15 * second}, Overlaps{CutOff: 1}},
		"told too late":        {lost(granted("a", 1, 5, 22, 31, 1), 30), Fault{Kind: Cut, Client: "a", From: 15 * second, To: 15 * second}, Overlaps{Broken: 1}},
		"told by its release":  {notHeld, Fault{Kind: Cut, Client: "a", From: 15 * second, To: 15 * second}, Overlaps{CutOff: 1}},
		"another was cut off":  {lost(granted("a", 1, 5, 22, 24, 1), 23), Fault{Kind: Cut, Client: "b", From: 15 * second, To: 15 * second}, Overlaps{Broken: 1}},
		"released in the end":  {granted("a", 1, 5, 22, 24, 1), Fault{Kind: Cut, Client: "a", From: 15 * second, To: 15 * second}, Overlaps{Broken: 1}},
		"stopped, and not cut": {lost(granted("a", 1, 5, 22, 24, 1), 23), Fault{Kind: Pause, Client: "a", From: 15 * second, To: 15 * second}, Overlaps{Broken: 1}},
	} {
		h, cut := untilCut(history.History{c.a, b}, []Fault{c.f})
		v := &Verdict{}
		v.measure(h, disturbed{}, disturbed{}, cut, driver.Traits{})
		broken := len(history.Exclusion(h)) > 0
		if v.Overlaps != c.want || broken != (c.want.Broken > 0) || c.want.CutOff > 0 && len(v.Margins) > 0 {
			t.Errorf("%s: %+v, want %+v; exclusion is broken: %v", name, v.Overlaps, c.want, broken)
		}
	}
}

func TestMargin(t *testing.T) {
	h := history.History{lost(granted("a", 1, 5, 10, 16, 1), 15), granted("b", 2, 20, 24, 25, 2)}
	for _, stopped := range []bool{false, true} {
		v, idle := &Verdict{}, disturbed{}
		if stopped {
			idle.add(Stall{Client: "a", From: 11 * second, To: 14 * second})
		}
		v.measure(h, disturbed{}, idle, nil, driver.Traits{})
		if stopped != (len(v.Margins) == 0) || !stopped && v.Margins[0] != 5 || v.Losses != 1 || v.Inversions != nil {
			t.Errorf("stopped %v: margins %v, %d losses", stopped, v.Margins, v.Losses)
		}
	}
}

func TestOvertaking(t *testing.T) {
	a := granted("a", 1, 20, 21, 22, 2)
	a.Waiting = 2 * second
	for name, c := range map[string]struct {
		b    history.Operation
		idle Stall
		want int
	}{
		"entered later, held earlier":   {granted("b", 3, 5, 6, 7, 1), Stall{}, 1},
		"perhaps entered earlier":       {granted("b", 1, 5, 6, 7, 1), Stall{}, 0},
		"held later":                    {granted("b", 3, 30, 31, 32, 3), Stall{}, 0},
		"the overtaken one did not run": {granted("b", 3, 5, 6, 7, 1), Stall{Client: "a", From: 3 * second, To: 4 * second}, 0},
		"another one did not run":       {granted("b", 3, 5, 6, 7, 1), Stall{Client: "c", From: 3 * second, To: 4 * second}, 1},
	} {
		v, d := &Verdict{}, disturbed{}
		d.add(c.idle)
		v.measure(history.History{a, c.b}, d, d, nil, driver.Traits{FIFO: true})
		if *v.Inversions != c.want {
			t.Errorf("%s: %d, want %d", name, *v.Inversions, c.want)
		}
	}
}

// A fault has hit those that hold at its moment, by the record.
func TestHits(t *testing.T) {
	control := granted("a", 1, 5, 9, 40, 1)
	control.Name = "control"
	h := history.History{lost(granted("a", 1, 5, 10, 31, 1), 30), granted("a", 32, 33, 34, 35, 2), control}
	v := &Verdict{Faults: map[Kind]Count{}, Control: Control{Kinds: map[Kind]int{}}}
	v.countHits([]Fault{
		{Kind: Pause, Client: "a", From: 11 * second}, {Kind: Cut, Client: "a", From: 34 * second},
		{Kind: Pause, Client: "a", From: 39 * second}, {Kind: Kill, Client: "b", From: 11 * second},
	}, h, "control")
	want := map[Kind]Count{Pause: {2, 1, 1}, Cut: {1, 1, 0}, Kill: {1, 0, 0}}
	if !reflect.DeepEqual(v.Faults, want) || v.Hits != 2 || v.Control.Hits != 3 {
		t.Errorf("%+v, %d hits, %d of the control", v.Faults, v.Hits, v.Control.Hits)
	}
}

func TestResults(t *testing.T) {
	one, clear := 1, mostLeaks
	for want, v := range map[Result][]Verdict{
		Held: {{Control: Control{Violations: 1}}, {Control: Control{Violations: 1}, Adapter: "x", Undisturbed: fewUndisturbed}},
		Inconclusive: {
			{}, {Control: Control{Violations: 1}, Adapter: "x", Undisturbed: fewUndisturbed - 1},
			{Control: Control{Violations: 1}, Adapter: "x", Undisturbed: fewUndisturbed, TrialFailed: "x"},
			{Control: Control{Violations: 1}, Adapter: "x", Undisturbed: fewUndisturbed, Leaks: &one, SlowAnswers: 1},
		},
		BrokenResult: {
			{Violations: []string{"x"}}, {LostFenced: 1}, {FalseEnds: 1}, {Stuck: []string{"x"}}, {Orphans: &one}, {Inversions: &one}, {Leaks: &one}, {Leaks: &clear, SlowAnswers: 1},
			{Overlaps: Overlaps{Broken: 1}, Control: Control{Violations: 1}},
		},
	} {
		for _, v := range v {
			if v.conclude(); v.Result != want || (v.Broken != "") != (want == BrokenResult) {
				t.Errorf("%+v", v)
			}
		}
	}
}

// The unfenced register shows a lost update, and the fenced one prevents it.
func TestRegisters(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		r, err := openRegister(t.TempDir(), "x", fenced)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		old, err1 := r.read("old", 1)
		now, err2 := r.read("new", 2)
		err3 := r.write("new", 2, now)
		late := r.write("old", 1, old)
		s, err4 := r.load()
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			t.Fatal(err)
		}
		want := state{Version: 2, Lost: 1}
		if fenced {
			want = state{Version: 1, Seen: 2, Refused: 1}
		}
		if s != want || errors.Is(late, fencing.ErrStale) != fenced {
			t.Errorf("fenced %v: %+v, the late write: %v", fenced, s, late)
		}
	}
}

func TestPlan(t *testing.T) {
	c := Config{For: time.Minute, TTL: time.Second, Processes: 6, Names: 3, Every: 550 * time.Millisecond, Seed: 7, Faults: []Kind{Hold, Kill}}
	plan := Plan(c)
	if again := Plan(c); !slices.Equal(plan, again) || len(plan) < 60 {
		t.Errorf("%d faults, and then %d", len(plan), len(again))
	}
	onControl := 0
	for i, p := range plan {
		if p.Kind != Hold && p.Kind != Kill || p.Worker < 0 || p.Worker >= 6 || p.At >= c.For || i > 0 && p.At < plan[i-1].At || p.Lasts < 1.1 {
			t.Errorf("%+v", p)
		}
		if p.Name == 0 && p.Kind == Hold {
			onControl++
		}
	}
	if onControl < len(plan)/5 {
		t.Errorf("%d of %d faults can show the control", onControl, len(plan))
	}
	onControl = 0
	c.Faults = Kinds
	counts := map[Kind]int{}
	for _, p := range Plan(c) {
		if p.Name == 0 && p.At < Enough(c) {
			counts[p.Kind]++
		}
	}
	if counts[Cut] < 2 || counts[Pause] < 2 || counts[Hold] < 2 || len(counts) != 3 || Enough(c) > c.For {
		t.Errorf("within %s the control is disturbed by %v", Enough(c), counts)
	}
	c.Faults = []Kind{Hold, Kill}
	if c.Seed++; slices.Equal(plan, Plan(c)) {
		t.Error("another seed gives the same plan")
	}
	before := Plan(c)
	c.Faults, c.Servers = append(c.Faults, ServerKinds...), 3
	atClients, atServers, servers := 0, map[Kind]int{}, map[int]bool{}
	for _, p := range Plan(c) {
		if p.Kind.OfServer() {
			atServers[p.Kind]++
			servers[p.Server] = true
		} else {
			atClients++
		}
	}
	if len(atServers) != 3 || atServers[ServerForget] < 2 || len(servers) != 3 || atClients != len(before) {
		t.Errorf("%d faults of clients, of %d without a server's; %v of servers %v", atClients, len(before), atServers, servers)
	}
}

// A server that has forgotten makes no broken promise where none is made, and hides none.
func TestForgotten(t *testing.T) {
	b := granted("b", 6, 20, 24, 25, 2)
	at := func(from, to int) Fault {
		return Fault{Kind: ServerForget, From: history.Time(from) * second, To: history.Time(to) * second}
	}
	for name, c := range map[string]struct {
		a       history.Operation
		forgets []Fault
		token   uint64 // of b
		want    Overlaps
		found   int
	}{
		"between the grants":                  {lost(granted("a", 1, 5, 22, 24, 7), 23), []Fault{at(10, 15)}, 3, Overlaps{Forgot: 1}, 0},
		"released, as it says":                {granted("a", 1, 5, 21, 22, 7), []Fault{at(10, 15)}, 8, Overlaps{Forgot: 1}, 0},
		"the answer came while it was down":   {lost(granted("a", 1, 12, 22, 24, 7), 23), []Fault{at(10, 15)}, 8, Overlaps{Forgot: 1}, 0},
		"after both grants":                   {lost(granted("a", 1, 5, 40, 41, 7), 40), []Fault{at(30, 35)}, 8, Overlaps{Broken: 1}, 1},
		"before both grants":                  {lost(granted("a", 3, 6, 22, 24, 7), 23), []Fault{at(4, 5)}, 8, Overlaps{Broken: 1}, 1},
		"twice":                               {lost(granted("a", 1, 5, 22, 24, 7), 23), []Fault{at(2, 3), at(10, 15)}, 3, Overlaps{Forgot: 1}, 0},
		"nothing is known of the server":      {lost(granted("a", 1, 5, 22, 24, 7), 23), nil, 8, Overlaps{Broken: 1}, 1},
		"stopped, and the server forgot":      {lost(granted("a", 1, 5, 8, 31, 7), 30), []Fault{at(10, 15)}, 8, Overlaps{InFlight: 1}, 0},
		"the next grant came before we knew":  {granted("a", 1, 5, 9, 10, 7), []Fault{at(18, 25)}, 3, Overlaps{}, 0},
		"a smaller token, and nothing forgot": {granted("a", 1, 5, 9, 10, 7), nil, 3, Overlaps{}, 1},
	} {
		b.Token = c.token
		excused := map[string]excuse{}
		h, forgets := untilForgotten(history.History{c.a, b}, c.forgets, 2*second, excused)
		v, found := &Verdict{}, 0
		v.measure(h, disturbed{}, disturbed{}, excused, driver.Traits{})
		for _, epoch := range epochs(h, forgets, 2*second) {
			found += len(history.Check(epoch, history.Options{Fencing: true}))
		}
		if v.Overlaps != c.want || (found > 0) != (c.found > 0) || c.want.Forgot > 0 && (v.FalseEnds > 0 || len(v.Margins) > 0) {
			t.Errorf("%s: %+v, want %+v; %d violations", name, v.Overlaps, c.want, found)
		}
	}
}

// A process that was late with its answer may hold a lock of the life before. Later than the TTL it
// does not.
func TestLateAnswerOfForgottenGrant(t *testing.T) {
	forget := []Fault{{Kind: ServerForget, From: 10 * second, To: 12 * second}}
	late, next := granted("late", 4, 15, 16, 16, 7), granted("next", 13, 13, 14, 14, 9)
	late.Waiting, next.Return = 5*second, 13*second+1
	for ttl, want := range map[history.Time]int{4 * second: 0, 2 * second: 1} {
		excused := map[string]excuse{}
		h, forgets := untilForgotten(history.History{late, next}, forget, ttl, excused)
		found := 0
		for _, epoch := range epochs(h, forgets, ttl) {
			found += len(history.Check(epoch, history.Options{Fencing: true}))
		}
		if found != want {
			t.Errorf("a TTL of %ds: %d violations, want %d", ttl/second, found, want)
		}
	}
}

// What the server does meets every client: a holder is hit, a waiter is not overtaken.
func TestFaultOfServer(t *testing.T) {
	a, b := granted("a", 1, 20, 21, 22, 2), granted("b", 3, 5, 6, 7, 1)
	a.Waiting = 2 * second
	faults := []Fault{{Kind: ServerRestart, From: 6 * second, To: 8 * second}, {Kind: ServerPause, From: 15 * second, To: 16 * second}}
	v := &Verdict{Faults: map[Kind]Count{}, Control: Control{Kinds: map[Kind]int{}}}
	v.countHits(faults, history.History{a, b}, "control")
	busy, stopped := disturbances(faults, nil, second)
	v.measure(history.History{a, b}, busy, stopped, nil, driver.Traits{FIFO: true})
	if v.Hits != 1 || v.Faults[ServerRestart].Hits != 1 || v.Faults[ServerPause].Done != 1 || *v.Inversions != 0 {
		t.Errorf("%+v, %d overtaken", v.Faults, *v.Inversions)
	}
}

func TestRoutes(t *testing.T) {
	for store, c := range map[string]struct {
		here   bool
		faults string // why no proxy; "" if there may be one
	}{
		"file:///x":                               {true, "no"},
		"redis://127.0.0.1":                       {true, ""},
		"redis://:s3cret@localhost:1/3":           {true, ""},
		"redis://10.0.0.1":                        {false, ""},
		"redis://127.0.0.1,10.0.0.1":              {false, "cluster"},
		"redis://127.0.0.1?sentinel=x":            {true, "Sentinel"},
		"redlock://127.0.0.1:1,127.0.0.1:2":       {true, ""},
		"etcd://127.0.0.1?ca=x":                   {true, "certificate"},
		"postgres://db/x":                         {false, "verify-full"},
		"postgres://db/x?sslmode=require":         {false, ""},
		"postgres://[::1]/x":                      {true, ""},
		"zookeeper://a,b?tls=true":                {false, "servername"},
		"zookeeper://a,b?tls=true&servername=zoo": {false, ""},
		"postgres:///x?host=/run":                 {false, "address"},
		"hasp+http://127.0.0.1":                   {true, "address"},
		"hasp+https://[::1]:8443/x":               {true, "address"},
		"hasp+http://127.0.0.1.evil.example":      {false, "address"},
		"nosuch://127.0.0.1":                      {true, "address"},
		"kube://locks":                            {false, "address"},
		"kube://locks?server=https://127.0.0.1:1": {true, ""},
		"s3://bucket?endpoint=http://127.0.0.1:1": {true, ""},
		"s3://bucket?endpoint=https://s3":         {false, ""},
	} {
		if got := OnThisMachine(store); got != c.here {
			t.Errorf("%s: on this machine: %v", store, got)
		}
		if err := Disturbable(store); (err == nil) != (c.faults == "") || err != nil && c.faults != "no" && !strings.Contains(err.Error(), c.faults) {
			t.Errorf("%s: %v", store, err)
		}
	}
}

// What is encrypted to a distant server stays so: a driver that sees a proxy on loopback would not
// ask for it by itself.
func TestProxiesKeepTLS(t *testing.T) {
	for store, name := range map[string]string{
		"rediss://u:p@10.0.0.1": "10.0.0.1", "mysql://u:p@db/x": "db", "mysql://u@127.0.0.1/x": "", "redis://10.0.0.1": "", "mysql://u:p@db/x?tls=false": "",
		"kube://locks?server=https://10.0.0.1": "10.0.0.1", "s3://bucket?endpoint=http://10.0.0.1": "", "s3://bucket?endpoint=https://s3.example": "s3.example",
	} {
		n, through, err := proxies(store)
		if err != nil {
			t.Fatal(err)
		}
		n.Close()
		u, err := url.Parse(through)
		if err != nil || server(u).Host != n.Addrs()[0] || u.Query().Get("servername") != name {
			t.Errorf("%s: %s, %v", store, through, err)
		}
	}
}
