package main

import (
	"errors"
	"fmt"
	"time"
)

// Leases. Calm ones last even on a busy machine, and no step treats one as lost: a running client
// that loses one has failed. Short ones are to end, and so they may also end when they should not:
// a machine that has no time for their holder during 3 seconds does it. That says nothing about a
// lock, and the step is played again with a lease of twice the length. That excuses nothing: the
// last attempt fails like every other step, and whether two can hold one lock is seen with calm
// leases, too.
const (
	calm = 3 * time.Minute
	// ZooKeeper's server grants 1 s and more, etcd's 2 s and more, in whole seconds.
	short    = 3 * time.Second
	attempts = 4 // 3, 6, 12, 24 seconds
)

// lapse reports that a short lease seems to have ended too early in the step.
type lapse struct{ text string }

func (l lapse) Error() string { return l.text }

// patiently plays a step, and again as long as only a short lease has lapsed.
func (m *match) patiently(s step) error {
	for m.lease = m.shortest; ; m.lease *= 2 {
		err := m.begin()
		if err == nil {
			err = s.run(m)
		}
		if err != nil {
			m.end() // a client may wait or hold where it should not
		}
		m.endShort()
		if !errors.As(err, new(lapse)) || m.lease >= m.shortest<<(attempts-1) {
			return err
		}
		m.r.Lapses++
	}
}

// intruded examines an error of blocked behind the short lease's holder. That the waiter has
// the lock is no violation if the holder's library says that the lease is lost.
func (m *match) intruded(err error) error {
	if errors.As(err, new(violation)) && m.short.saysLost() {
		return lapse{fmt.Sprintf("%v, which says that its lease of %s is lost", err, m.lease)}
	}
	return err
}
