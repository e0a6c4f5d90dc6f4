// Package docs draws the documentation's picture. Its tests keep the documentation true to itself.
package docs

import (
	"fmt"
	"strings"
)

// leasePicture draws docs/img/lease.svg: a hand-over, and a lease that is lost. Time runs to the
// right. It is drawn here so that its numbers are those of the code; a test compares the two, and
// writes the file if it is told to (see picture_test.go).
func leasePicture() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="14" role="img">`+"\n", width, 440)
	b.WriteString(`<title>A hand-over, and a lost lease</title>
<rect width="100%" height="100%" fill="#ffffff"/>
`)
	p := picture{&b}

	p.title(28, "Hand-over: A releases, and the next in the queue is told at once")
	p.lane(60, "A")
	p.lane(100, "B")
	p.bar(60, 0, 4, held, "held, token 87")
	p.bar(100, 1, 4, waiting, "waits, and asks nothing")
	p.arrow(4, 60, 100)
	p.bar(100, 4, 10, held, "held, token 88")
	p.mark(130, 4, "Release: the store tells B, and no other")

	p.title(190, "Lost lease: A is paused or cut off from the store (TTL 10 s)")
	p.lane(222, "A")
	p.lane(262, "store")
	p.lane(302, "B")
	p.bar(222, 0, trustEnds, held, "held, token 88")
	p.bar(222, trustEnds, 12, over, "told: its context has ended")
	p.bar(262, 0, 10, waiting, "A's entry, not renewed any more")
	p.bar(302, 1, 10, waiting, "waits")
	p.bar(302, 10, 12, held, "held, token 89")
	p.arrow(10, 262, 302)
	p.mark(332, 0, "0 s: last renewal sent")
	p.mark(352, trustEnds, fmt.Sprintf("%.1f s: trust ends", trustEnds))
	p.mark(372, 10, "10 s: the store grants B")
	p.text(left, 408, "start", "Between these two lies the safety margin, for what is on its way.")
	p.text(left, 428, "start", "A write of A that comes later still carries token 88. The resource has seen 89, and refuses it.")
	b.WriteString("</svg>\n")
	return b.String()
}

const (
	width = 980
	left  = 70 // of the time axis
	scale = 72 // pixels in a second

	// D = s + 0.99 T - g, with the default TTL and margin: docs/LEASE.md.
	trustEnds = 0.99*10 - 1
)

// The colours of a bar.
const (
	held    = "#9fd8b4"
	waiting = "#d9dde3"
	over    = "#f2b8a8"
)

type picture struct{ *strings.Builder }

func at(seconds float64) float64 { return left + seconds*scale }

func (p picture) text(x, y float64, anchor, s string) {
	fmt.Fprintf(p, `<text x="%g" y="%g" text-anchor="%s" fill="#1b1f24">%s</text>`+"\n", x, y, anchor, s)
}

func (p picture) title(y float64, s string) {
	fmt.Fprintf(p, `<text x="14" y="%g" font-size="16" font-weight="bold" fill="#1b1f24">%s</text>`+"\n", y, s)
}

func (p picture) lane(y float64, s string) { p.text(left-12, y+19, "end", s) }

func (p picture) bar(y, from, to float64, colour, s string) {
	fmt.Fprintf(p, `<rect x="%g" y="%g" width="%g" height="28" rx="3" fill="%s"/>`+"\n", at(from), y, (to-from)*scale, colour)
	p.text(at(from)+8, y+19, "start", s)
}

// mark names a moment, under the lanes.
func (p picture) mark(y, seconds float64, s string) {
	fmt.Fprintf(p, `<path d="M%g %g v8" stroke="#57606a"/>`+"\n", at(seconds), y-2)
	p.text(at(seconds)+5, y+12, "start", s)
}

// arrow is the store's word from one lane to the next.
func (p picture) arrow(seconds, from, to float64) {
	fmt.Fprintf(p, `<path d="M%g %g V%g m-5 -7 l5 7 l5 -7" fill="none" stroke="#1b1f24" stroke-width="2"/>`+"\n", at(seconds), from+28, to)
}
