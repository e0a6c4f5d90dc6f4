package drivertest

import (
	"slices"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/rulecases"
)

var agreementTests = []test{
	{name: "Table", needs: needsFIFO, run: testAgreement},
}

// S1, L5: the store's admission is driver.Decide: for each case of the table as the
// entries come, and then as they leave from every position.
func testAgreement(e *env) {
	for _, c := range rulecases.Cases() {
		counting := c.Capacity != driver.Whole
		shared := false
		for _, u := range c.Units {
			shared = shared || !counting && u != c.Capacity
		}
		if counting && !e.traits.Counting || shared && !e.traits.Shared {
			continue
		}
		for first := range c.Units {
			e.agree(c, first)
		}
	}
}

// place is an entry of a case: the request, and the store's last answer.
type place struct {
	driver.Ticket
	entry driver.Entry
	last  driver.Verdict
}

// agree enters a case and lets entries leave: the one at first, and then from the front.
func (e *env) agree(c rulecases.Case, first int) {
	e.Helper()
	sessions := []driver.Session{e.session(e.backend(), nil), e.session(e.backend(), nil)}
	name := e.name()
	var queue []*place
	for i, units := range c.Units {
		r := e.request(name, units, c.Capacity)
		t, v := e.enter(sessions[i%2], r)
		if want := c.Blockers[i] == 0; v.Held != want {
			e.Fatalf("%s: entry %d held: %t, want %t", c.Name, i, v.Held, want)
		}
		queue = append(queue, &place{t, driver.Entry{Request: r}, v})
	}
	for gone := first; len(queue) > 0; gone = 0 {
		e.leave(queue[gone])
		queue = slices.Delete(queue, gone, gone+1)
		var ahead []driver.Entry
		for _, p := range queue {
			want, _ := driver.Decide(ahead, p.entry.Request)
			if want {
				p.last = e.holds(p, p.last) // if it did not hold yet, it must be told
			}
			if v, err := e.ask(p); err != nil || v.Held != want || v.Token != p.last.Token {
				e.Fatalf("%s: with %d entries ahead, the one with %d units asked again: %+v, %v; want held %t, token %d",
					c.Name, len(ahead), p.entry.Units, v, err, want, p.last.Token)
			}
			ahead = append(ahead, p.entry)
		}
	}
	for _, s := range sessions {
		if err := s.Close(e.ctx()); err != nil {
			e.Fatalf("close: %v", err)
		}
	}
}
