package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// match is one running pair.
type match struct {
	pair
	start func(label string, ours bool, ttl time.Duration) (*process, error)
	dir   string // for the counter
	r     *result

	ours, theirs *process // with calm leases
	short        *process // the holder that dies or sleeps

	shortest time.Duration // its lease at the first attempt
	lease    time.Duration // and at this one
	begun    int           // how often both sides have begun
}

// play runs the steps. After one that has failed both sides begin anew.
func (m *match) play() {
	defer m.end()
	for _, s := range steps {
		if m.expect != nil && !slices.Contains(m.expect, s.name) {
			continue
		}
		if err := m.begin(); err != nil {
			m.note(err, s.name)
			return // and would not for the other steps: each takes its time to find that out
		}
		m.note(m.patiently(s), s.name)
	}
}

// note records the findings of a step.
func (m *match) note(err error, step string) {
	if err == nil {
		return
	}
	var v violation
	if errors.As(err, &v) {
		m.r.Violations += v.n
	}
	m.r.Problems = append(m.r.Problems, problem{step, err.Error()})
}

// begin starts the clients that do not run.
func (m *match) begin() (err error) {
	if m.theirs != nil {
		return nil
	}
	m.begun++
	if m.ours, err = m.start("hasp", true, calm); err != nil {
		return err
	}
	if m.theirs, err = m.start("the other", false, calm); err == nil {
		m.r.Version = m.theirs.version
	}
	return err
}

func (m *match) end() {
	m.endShort()
	for _, p := range []**process{&m.ours, &m.theirs} {
		if *p != nil {
			(*p).kill()
			*p = nil
		}
	}
}

// endShort kills the holder with a short lease, if it still runs.
func (m *match) endShort() {
	if m.short != nil {
		m.short.kill()
		m.short = nil
	}
}

// nameOf is the lock's name for one of the sides. Clients that begin anew get a new one: the
// entries of dead clients may last as long as a calm lease. Names that mean something, such as a
// database's, stay: their locks end with the connection.
func (m *match) nameOf(ours bool) string {
	name := m.name
	if !ours {
		name = m.theirName()
	}
	if m.begun > 1 && m.life != bound {
		name = fmt.Sprintf("%s-%d", name, m.begun)
	}
	return name
}

func (m *match) lockBy(p *process) (time.Time, error) {
	return p.do("lock", m.nameOf(p == m.ours))
}
