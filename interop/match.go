package main

import (
	"errors"
	"slices"
	"time"
)

// match is one pair at work.
type match struct {
	pair
	start func(who string, ours bool, ttl time.Duration) (*process, error)
	dir   string // for the counter
	r     *result

	ours, theirs *process // with calm leases
	short        *process // the holder that dies or sleeps
}

// play runs the steps. After one that has failed both sides begin anew: somebody may wait
// or hold where he should not.
func (m *match) play() error {
	defer func() { m.end() }()
	for _, s := range steps {
		if m.expect != nil && !slices.Contains(m.expect, s.name) {
			continue
		}
		if err := m.begin(); err != nil {
			return err
		}
		if err := s.run(m); err != nil {
			m.note(err, s.name)
			m.end()
		}
		if m.short != nil {
			m.short.kill()
			m.short = nil
		}
	}
	return nil
}

// note keeps what a step has found, if anything.
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

func (m *match) begin() (err error) {
	if m.ours == nil {
		if m.ours, err = m.start("hasp", true, calm); err != nil {
			return err
		}
	}
	if m.theirs == nil {
		m.theirs, err = m.start("the other", false, calm)
	}
	if err == nil {
		m.r.Version = m.theirs.version
	}
	return err
}

func (m *match) end() {
	for _, p := range []**process{&m.ours, &m.theirs, &m.short} {
		if *p != nil {
			(*p).kill()
			*p = nil
		}
	}
}

// nameOf is the lock's name for one of the sides.
func (m *match) nameOf(ours bool) string {
	if ours {
		return m.name
	}
	return m.theirName()
}

func (m *match) lockBy(p *process) (time.Time, error) {
	return p.do("lock", m.nameOf(p == m.ours))
}
