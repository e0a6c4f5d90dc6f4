package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// chart draws the times of a store's scenarios, a bar for each contestant, to a logarithmic
// scale: a poller is a hundred times slower, and would leave nothing else to see.
func chart(w io.Writer, store string, tables []table) {
	const left, bar, gap, width = 190, 13, 20, 720
	var body strings.Builder
	y := 40
	lowest, highest := extent(tables)
	x := func(us float64) float64 {
		return left + (width-left-70)*(math.Log(us)-math.Log(lowest))/(math.Log(highest)-math.Log(lowest))
	}
	for _, t := range tables {
		fmt.Fprintf(&body, `<text x="10" y="%d" font-weight="bold">%s: %s</text>`+"\n", y, t.Scenario, html.EscapeString(t.Title))
		y += 8
		for _, o := range t.Outcomes {
			if o.Median.P50 == 0 {
				continue
			}
			color := map[role]string{floor: "#b0b0b0", ours: "#2b6cb0", peer: "#dd8452"}[o.Role]
			fmt.Fprintf(&body, `<text x="%d" y="%d" text-anchor="end">%s</text>`, left-6, y+bar-3, html.EscapeString(o.Who))
			fmt.Fprintf(&body, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y, x(o.Median.P50)-left, bar-2, color)
			if p99 := o.Median.P99; p99 > 0 {
				fmt.Fprintf(&body, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/>`, x(o.Median.P50), x(p99), y+bar/2, y+bar/2, color)
			}
			fmt.Fprintf(&body, `<text x="%.1f" y="%d">%s µs</text>`+"\n", x(max(o.Median.P99, o.Median.P50))+4, y+bar-3, number(o.Median.P50))
			y += bar
		}
		y += gap
	}
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="10">
<rect width="100%%" height="100%%" fill="white"/>
<text x="10" y="18" font-size="14">%s: median (bar) and 99th percentile (line), logarithmic</text>
%s</svg>
`, width, y, html.EscapeString(store), body.String())
}

// extent of the times, with room at both ends.
func extent(tables []table) (lowest, highest float64) {
	lowest, highest = math.Inf(1), 1
	for _, t := range tables {
		for _, o := range t.Outcomes {
			if o.Median.P50 > 0 {
				lowest = min(lowest, o.Median.P50)
				highest = max(highest, o.Median.P50, o.Median.P99)
			}
		}
	}
	if math.IsInf(lowest, 1) {
		lowest = 0.1
	}
	return lowest / 2, highest * 2
}
