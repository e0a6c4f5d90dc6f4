package drivertest

import (
	"fmt"
	"slices"

	"github.com/hasplock/hasp/driver"
)

// What clients outside of any queue read of queues and names.
var listingTests = []test{
	{name: "Limit", run: testListLimit},
}

// List returns the first of a queue, as many as are asked for, and all of them for 0.
func testListLimit(e *env) {
	b, name := e.backend(), e.name()
	for _, limit := range []int{0, 1, 2} {
		if got := e.first(b, name, limit); len(got) != 0 {
			e.Fatalf("an unused name, with the limit %d: %+v", limit, got)
		}
	}
	sessions := []driver.Session{e.session(b, nil), e.session(e.backend(), nil)}
	var queue []string
	for i := range 4 {
		r := e.whole(name)
		e.enter(sessions[i%2], r)
		if queue = append(queue, r.ID); !e.traits.FIFO {
			break // a waiter has no entry in a queue
		}
	}
	n := len(queue)
	for _, limit := range []int{0, 1, 2, n - 1, n, n + 1, 1000} {
		if limit < 0 {
			continue
		}
		want := queue
		if limit > 0 {
			want = queue[:min(limit, n)]
		}
		for _, from := range []driver.Backend{b, e.backend()} {
			got := e.first(from, name, limit)
			if !slices.Equal(ids(got), want) {
				e.Errorf("List with the limit %d: %v; want %v", limit, ids(got), want)
			}
			for _, entry := range got {
				if entry.Left < 0 || entry.Left > e.longTTL() {
					e.Errorf("%s is left %s of a TTL of %s", entry.ID, entry.Left, e.longTTL())
				}
			}
		}
	}
}

// show prints an answer without its owner.
func show(v driver.Verdict) string {
	return fmt.Sprintf("held %t, token %d, retry %s", v.Held, v.Token, v.Retry)
}
