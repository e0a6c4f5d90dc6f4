package drivertest

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// The state of an entry that has expired but that the store may not have removed yet.
var expiryTests = needing(needsLeases, []test{
	{name: "NotListed", run: testExpiredNotListed},
	{name: "NotNamed", needs: needsNames, run: testExpiredNotNamed},
	{name: "NotRevived", run: testExpiredNotRevived},
	{name: "Told", run: testExpiryTold},
})

// expiring is a session that is about to expire, and its reports.
type expiring struct {
	driver.Session
	backend driver.Backend
	heal    func() // lets it talk to the store again, if it was cut off

	mu   sync.Mutex
	gone []string // ids of entries, "" for all
}

// expiring opens a session that is not renewed. Some client libraries renew on their own, so it is
// cut off where the harness can do that, once let is called. A session that has expired before that
// begins the trial again: the machine did not run this process for that long.
func (e *env) expiring() (s *expiring, let func()) {
	e.Helper()
	s = &expiring{backend: e.backend(), heal: func() {}}
	var granted time.Duration
	opened, early := time.Now(), true
	s.Session, granted = e.open(s.backend, driver.SessionOptions{TTL: e.h.TTL, Gone: func(id string, _ error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gone = append(s.gone, id)
	}})
	slow := func() {
		if early {
			e.slowIfOver(opened, granted)
		}
	}
	e.Cleanup(func() {
		slow()
		s.heal()
		_ = s.Close(e.Context()) // it has expired; a store may report that, or nothing
	})
	return s, func() {
		slow()
		early = false
		if e.h.Cut != nil {
			s.heal = sync.OnceFunc(e.h.Cut(e, s.backend))
		}
	}
}

// told reports whether Gone has reported the end of an entry, or of all entries of the session.
func (s *expiring) told(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.gone, id) || slices.Contains(s.gone, "")
}

// tells waits for that: another goroutine of the driver may be about to tell.
func (s *expiring) tells(e *env, id string) bool {
	for end := time.Now().Add(e.limit(100 * time.Millisecond)); !s.told(id); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// expire waits until an entry is not listed any more. No other client uses the name, so a store
// that removes expired entries only at the next use still has it.
//
// It returns the backend that has seen the end: where the store has no clock, one that was opened
// just now may list the entry, as one that looks over.
func (e *env) expire(name string) driver.Backend {
	e.Helper()
	var last []driver.Entry
	b := e.backend()
	e.eventually("the entry that is not renewed has expired, and is not listed", func() bool {
		last = e.list(b, name)
		return len(last) == 0
	}, func() any { return describe(last) })
	return b
}

// S6: an expired entry is never listed, with any limit, even if no request has yet removed it; by
// others at most as one that looks over.
func testExpiredNotListed(e *env) {
	name := e.name()
	s, let := e.expiring()
	e.enter(s, e.whole(name))
	let()
	b := e.expire(name)
	for _, limit := range []int{0, 1, 2} {
		if got := e.first(b, name, limit); len(got) != 0 {
			e.Errorf("List with the limit %d after the expiry: %+v", limit, got)
		}
		for _, got := range e.first(e.backend(), name, limit) {
			if got.LooksOver.IsZero() {
				e.Errorf("List of another client with the limit %d after the expiry: %+v", limit, got)
			}
		}
	}
}

// A name whose entries have all expired is not in use: a list of names (`hasp ls`) must not show
// it.
func testExpiredNotNamed(e *env) {
	for range trials {
		name := e.name()
		s, let := e.expiring()
		begun := time.Now()
		e.enter(s, e.whole(name))
		if got := e.listed(name); len(got) == 0 && time.Since(begun) >= e.h.TTL {
			continue // it had expired before the first look
		} else if !slices.Equal(got, []string{name}) {
			e.Errorf("names with prefix %q: %q", name, got)
		}
		let()
		err := e.expire(name).(driver.Namer).Names(e.ctx(), name, func(n string) bool {
			e.Errorf("after the expiry %q is listed", n)
			return true
		})
		if err != nil {
			e.Errorf("names with prefix %q: %v", name, err)
		}
		return
	}
	e.Skipf("inconclusive: %d times this machine took longer than a TTL to enter and look", trials)
}

// S6: a late renewal renews nothing, even if the store has not yet removed the expired entry: its
// owner has already reported the loss, and would keep a lock that no client believes to hold. The
// driver reports it, and the next client gets the lock at once.
func testExpiredNotRevived(e *env) {
	name := e.name()
	s, let := e.expiring()
	r := e.whole(name)
	t, v := e.enter(s, r)
	e.holds(t, v)
	let()
	e.expire(name)
	s.heal()
	if granted, err := s.KeepAlive(e.ctx()); !errors.Is(err, driver.ErrGone) && !s.tells(e, r.ID) {
		e.Errorf("the renewal after the expiry: %s granted, %v, and nothing was told", granted, err)
	}
	if got := e.list(e.backend(), name); len(got) != 0 {
		e.Errorf("the renewal after the expiry has brought back %v", ids(got))
	}
	try := e.whole(name)
	try.NoWait = true
	next, v := e.enter(e.session(e.backend(), nil), try)
	if !v.Held {
		e.Fatal("the expired entry keeps others out after its renewal")
	}
	if v, err := t.Enqueue(e.ctx()); err == nil && v.Held {
		e.Errorf("the owner of the expired entry is told that it holds: %+v", v)
	}
	e.leave(next)
}

// L1, L2: a waiter is granted the lock when another's entry expires, by a notification or by asking
// again when Verdict.Retry says. No other event in this test could wake it by chance, not even a
// renewal of its session.
func testExpiryTold(e *env) {
	name := e.name()
	s, let := e.expiring()
	t, v := e.enter(s, e.whole(name))
	e.holds(t, v)
	// Its session must last longer than it may wait.
	bound := 2*e.h.TTL + 2*time.Second
	opened := time.Now()
	waiting, granted := e.open(e.backend(), driver.SessionOptions{TTL: max(4*e.h.TTL, 2*bound), Gone: func(string, error) {}})
	defer waiting.Close(e.ctx())
	next, v := e.enter(waiting, e.whole(name))
	if v.Held {
		e.Fatal("granted while another holds")
	}
	let()
	began := time.Now()
	if granted < bound {
		// The store has one TTL for all: the waiter would expire with the holder. So it is renewed
		// while the holder's entry lives: that too is no event after the expiry.
		time.Sleep(e.h.TTL / 2)
		opened = time.Now()
		if _, err := e.renew(waiting); err != nil {
			e.Fatalf("the waiter's renewal: %v", err)
		}
	}
	defer func() { e.slowIfOver(opened, granted) }()
	e.holds(next, v)
	if took := time.Since(began); took > e.limit(bound) {
		e.Errorf("the waiter learnt of the expiry after %s, with a TTL of %s (its own session lasts %s); the answer to its Enqueue was %s",
			took, e.h.TTL, granted, show(v))
	}
	e.leave(next)
}
