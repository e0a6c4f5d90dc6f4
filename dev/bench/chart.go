package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// picture is a chart of the users' page: a row for each contestant, and one or more panels of bars
// beside each other.
type picture struct {
	file, title, scenario string
	oursAlone             bool
	panels                []panel
}

// panel is one figure of all contestants, each on the same scale.
type panel struct {
	title       string
	logarithmic bool // a library that polls is a hundred times slower: nothing else would be visible
	value       func(f figures) float64
	text        func(v float64) string
}

var charts = []picture{
	{file: "perf-handover.svg", scenario: "S6", title: "From a release to the next acquisition", panels: []panel{
		{"median, logarithmic: shorter is better", true, func(f figures) float64 { return f.P50 }, duration},
	}},
	{file: "perf-contention.svg", scenario: "S3-512", title: "512 clients, one lock, held for 1 ms", panels: []panel{
		{"locks per second: more is better", false, func(f figures) float64 { return f.Rate }, perSecondText},
		{"fairness: 1 is best", false, func(f figures) float64 { return f.Jain }, fairnessText},
	}},
	{file: "perf-holding.svg", scenario: "S5", title: "10,000 locks held by one client", oursAlone: true, panels: []panel{
		{"requests per second", false, func(f figures) float64 { return f.PerSecond }, func(v float64) string { return fmt.Sprintf("%.1f", v) }},
		{"processor time, of one core", false, func(f figures) float64 { return f.CPU30 / 30 * 100 }, func(v float64) string { return fmt.Sprintf("%.2f %%", v) }},
		{"memory for each lock", false, func(f figures) float64 { return f.Heap }, func(v float64) string { return thousands(v) + " B" }},
	}},
}

// row is a contestant of a store, or with an empty one the store's title.
type row struct {
	label string
	head  bool
	ours  bool
	f     figures
}

// rows are the contestants that have figures in the picture's scenario.
func (c picture) rows(r *report) (all []row) {
	for _, store := range r.stores() {
		var some []row
		for _, who := range r.shown(store) {
			if o, found := find(r.Tables, store, c.scenario, who.Who); found && !(c.oursAlone && o.Role != ours) {
				some = append(some, row{label: who.title(), ours: o.Role == ours, f: o.Median})
			}
		}
		if len(some) > 0 {
			all = append(append(all, row{label: storeTitles[store], head: true}), some...)
		}
	}
	return all
}

// svg draws the picture.
func (c picture) svg(w io.Writer, r *report) {
	const left, line, width, label = 170, 15, 760, 95
	rows := c.rows(r)
	room := (width - left) / len(c.panels)
	var body strings.Builder
	for i, p := range c.panels {
		fmt.Fprintf(&body, `<text x="%d" y="40" fill="#555">%s</text>`+"\n", left+i*room, html.EscapeString(p.title))
	}
	y := 52
	for _, row := range rows {
		if row.head {
			y += 8
			fmt.Fprintf(&body, `<text x="10" y="%d" font-weight="bold">%s</text>`+"\n", y+line-4, html.EscapeString(row.label))
			y += line
			continue
		}
		color := "#dd8452"
		if row.ours {
			color = "#2b6cb0"
		}
		fmt.Fprintf(&body, `<text x="20" y="%d">%s</text>`, y+line-4, html.EscapeString(row.label))
		for i, p := range c.panels {
			x, v := left+i*room, p.value(row.f)
			length := p.scale(rows, v) * float64(room-label)
			fmt.Fprintf(&body, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, x, y, length, line-3, color)
			fmt.Fprintf(&body, `<text x="%.1f" y="%d">%s</text>`, float64(x)+length+4, y+line-4, html.EscapeString(p.text(v)))
		}
		body.WriteByte('\n')
		y += line
	}
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">
<rect width="100%%" height="100%%" fill="white"/>
<text x="10" y="20" font-size="15">%s</text>
<text x="%d" y="20" text-anchor="end"><tspan fill="#2b6cb0">hasp</tspan> <tspan fill="#dd8452">others</tspan></text>
%s</svg>
`, width, y+10, html.EscapeString(c.title), width-10, body.String())
}

// scale is the length of a bar, from 0 to 1.
func (p panel) scale(rows []row, v float64) float64 {
	lowest, highest := math.Inf(1), 0.0
	for _, row := range rows {
		if x := p.value(row.f); !row.head && x > 0 {
			lowest, highest = min(lowest, x), max(highest, x)
		}
	}
	switch {
	case v <= 0:
		return 0
	case p.logarithmic:
		return math.Log(v/(lowest/2)) / math.Log(highest/(lowest/2))
	}
	return v / highest
}
