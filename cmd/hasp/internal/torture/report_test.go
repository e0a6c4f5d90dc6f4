//go:build unix

package torture

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/history"
)

// recordOf is a holder that is paused and goes on beside the next one, a good one, and the control.
func recordOf() history.History {
	return history.History{
		{ID: "1", Client: "process 0.1", Name: "n", Outcome: history.Granted, Return: 11 * second, Token: 1, Asked: true, LastHeld: 12 * second, Lost: 15 * second, ReleaseCall: 16 * second, Release: history.NotHeld},
		{ID: "2", Client: "process 1.1", Name: "n", Outcome: history.Granted, Return: 14 * second, Token: 2, ReleaseCall: 15 * second, Release: history.Released},
		{ID: "3", Client: "process 1.2", Name: "n", Outcome: history.Granted, Return: 17 * second, Token: 3, Asked: true, LastHeld: 18 * second}, // killed
		{ID: "4", Client: "process 0.1", Name: "n", Outcome: history.Busy, Return: 17 * second},
		{ID: "5", Client: "process 0.1", Name: "control", Outcome: history.Granted, Return: 12 * second, ReleaseCall: 13 * second, Release: history.Released},
	}
}

func TestDraw(t *testing.T) {
	faults := []Fault{{Kind: Pause, Client: "process 0.1", From: 12 * second, To: 15 * second, Holder: true}}
	p := draw(recordOf(), faults, 10*second, 10_000_000, "control")
	if !slices.Equal(p.Lanes, []string{"process 0", "process 1"}) {
		t.Errorf("lanes %q: those that replace one another share one", p.Lanes)
	}
	if len(p.Names) != 2 || p.Names[0].Control || !p.Names[1].Control {
		t.Fatalf("names %+v, want the control last", p.Names)
	}
	n := p.Names[0]
	want := []int64{
		0, 1_000_000, 2_000_000, 6_000_000, endedLost, 1,
		1, 4_000_000, 5_000_000, 5_000_000, endedReleased, 2,
		1, 7_000_000, 8_000_000, 8_000_000, endedUnknown, 3,
	}
	if !slices.Equal(n.Holds, want) {
		t.Errorf("holds\n%v, want\n%v", n.Holds, want)
	}
	if !slices.Equal(n.Overlaps, []int64{4_000_000, 0, 1}) {
		t.Errorf("overlaps %v", n.Overlaps)
	}
	if want := (drawn{Pause, 0, 2_000_000, 5_000_000, true}); len(p.Faults) != 1 || p.Faults[0] != want {
		t.Errorf("faults %+v", p.Faults)
	}
	if p.All != 4 || p.Shown != 4 {
		t.Errorf("%d of %d", p.Shown, p.All)
	}
}

// A report stays small: what nothing has happened to is thinned out, and what is of interest stays.
func TestThin(t *testing.T) {
	var grants []*history.Operation
	for i := range history.Time(10_000) {
		o := &history.Operation{Client: "c", Return: i * second, ReleaseCall: i*second + 1000, Release: history.Released}
		if i%1000 == 7 {
			o.Lost = o.ReleaseCall
		}
		grants = append(grants, o)
	}
	faults := []Fault{{Client: "c", From: 5002 * second, To: 5003 * second}}
	kept := thin(grants, faults, 1000)
	if len(kept) > 1000 {
		t.Errorf("%d are kept", len(kept))
	}
	for _, o := range grants {
		if (o.Lost > 0 || o.Return == 5003*second) && !slices.Contains(kept, o) {
			t.Errorf("the hold at %d is missing", o.Return/second)
		}
	}
}

// Names are the user's when the store's URL has a prefix, and a name is no script.
func TestReportEscapes(t *testing.T) {
	const evil = "</script><script>alert(1)</script>"
	all := recordOf()
	for i := range all {
		all[i].Name += evil
	}
	v := &Verdict{Store: evil, Violations: []string{evil}, picture: draw(all, nil, 10*second, 10_000_000, "control")}
	var b bytes.Buffer
	if err := v.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "<script>alert") || strings.Count(b.String(), "</script>") != 1 {
		t.Error("a name can end the script")
	}
}
