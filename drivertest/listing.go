package drivertest

import (
	"fmt"
	"slices"

	"github.com/hasplock/hasp/driver"
)

// What clients outside of any queue read of queues, names and stores.
var listingTests = []test{
	{name: "Limit", run: testListLimit},
	{name: "Identity", needs: needsIdentifier, run: testIdentity},
	{name: "IdentityOfProcess", needs: needsIdentifier, run: testIdentityOfProcess, processes: true},
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
				if entry.Left < 0 || entry.Left > e.calm() {
					e.Errorf("%s is left %s of a TTL of %s", entry.ID, entry.Left, e.calm())
				}
			}
		}
	}
}

// Two connections to one store must be recognised as one store, or LockAll takes the same lock
// twice and waits for itself; and the identity must not show the secrets of a URL (O2).
func testIdentity(e *env) {
	own := e.identity(e.backend())
	for range 2 {
		if id := e.identity(e.backend()); id != own {
			e.Errorf("two connections to the store have the identities %q and %q", own, id)
		}
	}
	e.discreet("the identity of the store", own)
}

// Processes that take locks of several stores take them in the order of their identities.
func testIdentityOfProcess(e *env) {
	p := e.process(e.h.TTL)
	p.do(order{Do: "identity"})
	if r := p.hears("answer"); r.Error != "" || r.Text != e.identity(e.backend()) {
		e.Errorf("the store is %q to this process, and to another %q, %s", e.identity(e.backend()), r.Text, r.Error)
	}
}

// identity requires a valid identity.
func (e *env) identity(b driver.Backend) string {
	e.Helper()
	i := b.(driver.Identifier)
	id, err := i.Identity(e.ctx())
	if err != nil || id == "" || len(id) > 200 {
		e.Fatalf("the identity of the store is %q, %v; want 1 to 200 bytes", id, err)
	}
	if again, err := i.Identity(e.ctx()); err != nil || again != id {
		e.Errorf("the identity of one backend is %q, and when asked again %q, %v", id, again, err)
	}
	return id
}

// show prints an answer without its owner.
func show(v driver.Verdict) string {
	return fmt.Sprintf("held %t, token %d, retry %s", v.Held, v.Token, v.Retry)
}
