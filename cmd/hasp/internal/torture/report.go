//go:build unix

package torture

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/hasplock/hasp/internal/history"
)

// picture has all that the report draws. Times are microseconds since the workers began, in flat
// lists, so that a hundred thousand acquisitions take a few megabytes.
type picture struct {
	Length  int64     `json:"length"`
	Lanes   []string  `json:"lanes"` // processes; those that replace one another share a lane
	Names   []timeOf  `json:"names"`
	Faults  []drawn   `json:"faults"`
	Margins []float64 `json:"margins"` // seconds, ascending
	Shown   int       `json:"shown"`   // holds that are drawn
	All     int       `json:"all"`
}

// timeOf is the timeline of one name.
type timeOf struct {
	Name    string `json:"name"`
	Control bool   `json:"control"`
	// Holds has six numbers for each: lane, grant, last sure moment, end of the work, how it ended,
	// token.
	Holds []int64 `json:"holds"`
	// Overlaps has three for each: when another was granted the lock, the index of the first hold,
	// and that of the second.
	Overlaps []int64 `json:"overlaps"`
}

// How a hold ended.
const (
	endedReleased = iota
	endedLost
	endedUnknown
)

// drawn is a fault in the picture.
type drawn struct {
	Kind   Kind  `json:"kind"`
	Lane   int   `json:"lane"`
	From   int64 `json:"from"`
	To     int64 `json:"to"`
	Holder bool  `json:"holder"`
}

// mostDrawn bounds the holds in a report. Beyond it, those far from faults and overlaps are thinned
// out.
const mostDrawn = 100_000

func micros(t, began history.Time) int64 { return int64(t-began) / 1000 }

// draw makes the picture of a record.
func draw(all history.History, faults []Fault, began history.Time, length int64, control string) *picture {
	p := &picture{Length: length}
	clients := map[string]bool{}
	for i := range all {
		clients[all[i].Client] = true
	}
	for _, c := range slices.Sorted(maps.Keys(clients)) {
		p.lane(c)
	}
	for _, f := range faults {
		lanes := []int{}
		if f.Client != "" {
			lanes = append(lanes, p.lane(f.Client))
		} else { // of the server: all have it
			for i := range p.Lanes {
				lanes = append(lanes, i)
			}
		}
		for _, lane := range lanes {
			p.Faults = append(p.Faults, drawn{f.Kind, lane, micros(f.From, began), micros(max(f.To, f.From), began), f.Holder})
		}
	}
	history.EachName(all, "", func(_ *history.CheckRun, ops []*history.Operation) {
		var grants []*history.Operation
		for _, o := range ops {
			if o.Outcome == history.Granted {
				grants = append(grants, o)
			}
		}
		if len(grants) == 0 {
			return
		}
		slices.SortFunc(grants, func(a, b *history.Operation) int { return cmp.Compare(a.Return, b.Return) })
		p.All += len(grants)
		name := grants[0].Name
		t := timeOf{Name: name, Control: name == control, Holds: []int64{}, Overlaps: []int64{}}
		for _, o := range thin(grants, faults, mostDrawn/4) {
			t.add(o, p.lane(o.Client), began)
		}
		t.overlaps()
		p.Shown += len(t.Holds) / numbersOfHold
		p.Names = append(p.Names, t)
	})
	slices.SortStableFunc(p.Names, func(a, b timeOf) int { // the control last
		if a.Control != b.Control && b.Control {
			return -1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return p
}

// lane is the number of the lane of a client's process.
func (p *picture) lane(client string) int {
	who, _, _ := strings.Cut(client, ".")
	i := slices.Index(p.Lanes, who)
	if i < 0 {
		i = len(p.Lanes)
		p.Lanes = append(p.Lanes, who)
	}
	return i
}

const numbersOfHold = 6

func (t *timeOf) add(o *history.Operation, lane int, began history.Time) {
	_, sure, certain := o.Certain()
	if !certain {
		sure = o.Return
	}
	end, how := over(o), int64(endedReleased)
	switch {
	case end == 0: // it was killed: what it last knew
		end, how = max(o.LastHeld, o.Return), endedUnknown
	case o.Lost > 0:
		how = endedLost
	case o.Release != history.Released:
		how = endedUnknown
	}
	t.Holds = append(t.Holds, int64(lane), micros(o.Return, began), micros(sure, began), micros(max(end, o.Return), began), how, int64(o.Token))
}

// overlaps finds the holds whose work had not ended when another was granted the lock. Holds are in
// the order of their grants.
func (t *timeOf) overlaps() {
	n := len(t.Holds) / numbersOfHold
	for i := range n {
		end := t.Holds[i*numbersOfHold+3]
		for j := i + 1; j < n && t.Holds[j*numbersOfHold+1] < end; j++ {
			t.Overlaps = append(t.Overlaps, t.Holds[j*numbersOfHold+1], int64(i), int64(j))
		}
	}
}

// thin leaves out holds where nothing happened, evenly, until at most so many are left.
func thin(grants []*history.Operation, faults []Fault, most int) []*history.Operation {
	if len(grants) <= most {
		return grants
	}
	near := func(o *history.Operation) bool {
		if o.Lost > 0 || o.ReleaseCall == 0 || o.ReleaseCall-o.Return > 100e6 {
			return true
		}
		return slices.ContainsFunc(faults, func(f Fault) bool {
			return f.From <= o.ReleaseCall && f.To >= o.Return && (f.Client == o.Client || f.Client == "")
		})
	}
	every := (len(grants) + most - 1) / most * 2
	var kept []*history.Operation
	for i, o := range grants {
		if i%every == 0 || near(o) {
			kept = append(kept, o)
		}
	}
	return kept
}

//go:embed report.html
var reportPage string

// WriteHTML writes the verdict as one page that needs no network: the numbers, a timeline for each
// name, and the distribution of the time between a loss that was told and the next grant.
//
// Its places are filled by hand: package html/template calls methods by names that the linker
// cannot know, and with it in the program all methods of all packages stay, 17 MB.
func (v *Verdict) WriteHTML(w io.Writer) error {
	p := *v.picture
	p.Margins = append([]float64{}, v.Margins...) // null would be no list
	data, err := json.Marshal(p)                  // it writes <, > and & so that they end no script
	if err != nil {
		return err
	}
	text := html.EscapeString
	var violations, kinds, numbers strings.Builder
	for _, x := range v.Violations {
		fmt.Fprintf(&violations, "<pre>%s</pre>\n", text(x))
	}
	for _, k := range v.Kinds {
		fmt.Fprintf(&kinds, `<li><i style="background:var(--%s);opacity:.5"></i>%[1]s</li>`, text(string(k)))
	}
	for _, l := range v.lines() {
		if l != (line{}) {
			fmt.Fprintf(&numbers, `<tr><th scope="row">%s</th><td>%s</td></tr>`, text(l.What), text(l.Text))
		}
	}
	thinned := ""
	if p.Shown < p.All {
		thinned = fmt.Sprintf(`<p class="soft">%d of %d holds are drawn: all that a fault, a loss or an overlap concerns, and some of the others.</p>`, p.Shown, p.All)
	}
	run := fmt.Sprintf("%s · %g s · %d processes · TTL %s · seed %d", v.Store, v.Seconds, v.Processes, short(v.TTL), v.Seed)
	_, err = strings.NewReplacer(
		"@RESULT@", text(string(v.Result)), "@RUN@", text(run), "@SENTENCE@", text(v.Sentence()), "@VIOLATIONS@", violations.String(),
		"@KINDS@", kinds.String(), "@THINNED@", thinned, "@NUMBERS@", numbers.String(), "@DATA@", string(data),
	).WriteString(w, reportPage)
	return err
}
