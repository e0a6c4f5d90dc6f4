package main

import (
	"fmt"
	"strings"
)

// sum has what all slices of a store have seen together.
type sum struct {
	Store        string   `json:"store"`
	Minutes      float64  `json:"minutes"`
	Slices       int      `json:"slices"`
	Caught       int      `json:"control_caught"` // in so many slices
	Acquisitions int      `json:"acquisitions"`
	Hits         int      `json:"hits"`
	AtServer     int      `json:"server_faults"` // of the hits
	Overlaps     overlaps `json:"overlaps"`
	Plain        uint64   `json:"lost_updates_unfenced"`
	Writes       uint64   `json:"writes"`
	Fenced       uint64   `json:"lost_updates_fenced"`
	Fencing      bool     `json:"fencing"`
	Broken       []string `json:"broken"` // in words, one for each slice with a broken promise
}

// add adds up the slices that are there.
func add(dir string, all []slice) (sums []*sum, err error) {
	byName := map[string]*sum{}
	for _, s := range all {
		d, err := s.load(dir)
		if err != nil {
			return nil, err
		}
		t := byName[s.name]
		if t == nil {
			t = &sum{Store: s.name, Broken: []string{}}
			byName[s.name] = t
			sums = append(sums, t)
		}
		if d != nil {
			t.add(s, &d.Verdict)
		}
	}
	return sums, nil
}

func (t *sum) add(s slice, v *judgement) {
	t.Slices++
	t.Minutes += v.Seconds / 60
	if v.Control.Violations > 0 {
		t.Caught++
	}
	t.Acquisitions += v.Acquisitions
	t.Hits += v.Hits
	for kind, f := range v.Faults {
		if strings.HasPrefix(kind, "server") {
			t.AtServer += f.Hits
		}
	}
	t.Overlaps.InFlight += v.Overlaps.InFlight
	t.Overlaps.Told += v.Overlaps.Told
	t.Overlaps.CutOff += v.Overlaps.CutOff
	t.Overlaps.Forgot += v.Overlaps.Forgot
	t.Overlaps.Broken += v.Overlaps.Broken
	t.Plain, t.Writes, t.Fenced = t.Plain+v.Plain, t.Writes+v.Writes, t.Fenced+v.Fenced
	t.Fencing = v.Fencing
	if v.BrokenWords != "" {
		t.Broken = append(t.Broken, fmt.Sprintf("slice %d: %s", s.number, v.BrokenWords))
	}
}

// campaignMark is the name of the campaign's place in the page.
const campaignMark = "campaign"

func sumsTable(sums []*sum) string {
	var b strings.Builder
	b.WriteString("| store | minutes | acquisitions | hits | of these, at the server | stopped or in flight | told | cut off | server forgot | told that they hold | lost updates | broken promises | control caught |\n" +
		"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, t := range sums {
		lost := fmt.Sprintf("%d of %d", t.Plain, t.Writes)
		if t.Fencing {
			lost += fmt.Sprintf("; %d with the fence", t.Fenced)
		}
		o := t.Overlaps
		fmt.Fprintf(&b, "| %s | %.0f | %d | %d | %d | %d | %d | %d | %d | %d | %s | %d | %d of %d |\n", t.Store, t.Minutes, t.Acquisitions, t.Hits, t.AtServer,
			o.InFlight, o.Told, o.CutOff, o.Forgot, o.Broken, lost, len(t.Broken), t.Caught, t.Slices)
	}
	return b.String()
}
