package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The leases. calm ones are to last whatever else the machine does, short ones are to end:
// ZooKeeper's server grants 1 s and more, etcd's 2 s and more, in whole seconds.
const (
	calm  = 30 * time.Second
	short = 3 * time.Second
	// slack is how much later than its lease's end a dead holder's lock may be had. The
	// table shows how much it was; only a fault takes this long.
	slack = 20 * time.Second

	settle = 100 * time.Millisecond // until a client that was asked for a lock waits for it
	shakes = 9                      // hand-overs that are measured, each way
)

// violation is that n locks were held by two, or n increments were lost.
type violation struct {
	n    int
	text string
}

func (v violation) Error() string { return v.text }

// step is one thing that is tried with a pair.
type step struct {
	name string
	run  func(*match) error
}

var steps = []step{
	{"exclusion", (*match).exclusion},
	{"tries", (*match).tries},
	{"theirs wake ours", func(m *match) error { return m.wake(m.theirs, m.ours, &m.r.TheirsWakeOurs) }},
	{"ours wake theirs", func(m *match) error { return m.wake(m.ours, m.theirs, &m.r.OursWakeTheirs) }},
	{"theirs killed", func(m *match) error { return m.killed(false, &m.r.TheirsKilled) }},
	{"ours killed", func(m *match) error { return m.killed(true, &m.r.OursKilled) }},
	{"theirs overrun", func(m *match) error { return m.overrun(false, &m.r.TheirsOverrun) }},
	{"ours overrun", func(m *match) error { return m.overrun(true, &m.r.OursOverrun) }},
}

// rounds is how many increments each side makes.
const rounds = 100

// exclusion has both sides increment a counter that nothing but the lock protects.
func (m *match) exclusion() error {
	file := filepath.Join(m.dir, "counter")
	if err := os.WriteFile(file, []byte("0"), 0o644); err != nil {
		return err
	}
	for _, p := range []*process{m.theirs, m.ours} {
		if err := p.send("count", rounds, m.pause, file, m.nameOf(p == m.ours)); err != nil {
			return err
		}
	}
	for _, p := range []*process{m.theirs, m.ours} {
		if _, err := p.awaitTime(patience); err != nil {
			return err
		}
		m.r.Acquisitions += rounds
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(text))
	if n != 2*rounds || err != nil {
		return violation{max(1, 2*rounds-n), fmt.Sprintf("the counter is %q after %d increments", text, 2*rounds)}
	}
	return nil
}

// tries has each side refused, without waiting, while the other holds.
func (m *match) tries() error {
	for _, s := range []struct{ holder, other *process }{{m.ours, m.theirs}, {m.theirs, m.ours}} {
		if _, err := m.lockBy(s.holder); err != nil {
			return err
		}
		m.r.Acquisitions++
		answer, err := s.other.ask("try", m.nameOf(s.other == m.ours))
		if err != nil {
			return err
		}
		switch {
		case strings.HasPrefix(answer, "ok"):
			return violation{1, fmt.Sprintf("%s has it by a try while %s holds", s.other.who, s.holder.who)}
		case answer != "busy" && answer != "none":
			return fmt.Errorf("try: %s answers %q", s.other.who, answer)
		}
		if _, err := s.holder.do("unlock"); err != nil {
			return err
		}
	}
	return nil
}

// wake has one side wait until the other lets go, several times.
func (m *match) wake(holder, waiter *process, median *millis) error {
	var took []time.Duration
	for range shakes {
		if _, err := m.lockBy(holder); err != nil {
			return err
		}
		if err := waiter.send("lock", m.nameOf(waiter == m.ours)); err != nil {
			return err
		}
		if err := waiter.blocked(settle, holder); err != nil {
			return err
		}
		left, err := holder.do("unlock")
		if err != nil {
			return err
		}
		got, err := waiter.awaitTime(calm + slack)
		if err != nil {
			return fmt.Errorf("the waiter after the release: %w", err)
		}
		if got.Before(left) {
			return violation{1, fmt.Sprintf("%s had it %s before %s let go", waiter.who, left.Sub(got), holder.who)}
		}
		took = append(took, got.Sub(left))
		m.r.Acquisitions += 2
		if _, err := waiter.do("unlock"); err != nil {
			return err
		}
	}
	slices.Sort(took)
	*median = millis(took[len(took)/2])
	return nil
}

// hold starts a client of one side with a short lease, which takes the lock, and has the
// other side wait behind it.
func (m *match) hold(ours bool) (waiter *process, err error) {
	who, waiter := "the other, with a short lease,", m.ours
	if ours {
		who, waiter = "hasp, with a short lease,", m.theirs
	}
	if m.short, err = m.start(who, ours, short); err != nil {
		return nil, err
	}
	if _, err := m.short.do("lock", m.nameOf(ours)); err != nil {
		return nil, err
	}
	return waiter, waiter.send("lock", m.nameOf(!ours))
}

// killed has the holder die by SIGKILL. Whoever waits gets the lock when the holder's lease
// has ended, or at once where the lock is bound to a connection.
func (m *match) killed(ours bool, after *millis) error {
	waiter, err := m.hold(ours)
	if err != nil {
		return err
	}
	time.Sleep(settle)
	dead := time.Now()
	m.short.kill()
	m.short = nil
	got, err := waiter.awaitTime(short + slack)
	if err != nil {
		return fmt.Errorf("the waiter after the holder's death: %w", err)
	}
	if got.Before(dead) {
		return violation{1, fmt.Sprintf("%s had it %s before the holder was killed", waiter.who, dead.Sub(got))}
	}
	*after = millis(got.Sub(dead))
	m.r.Acquisitions += 2
	_, err = waiter.do("unlock")
	return err
}

// overrun has the holder work for longer than its lease: it is stopped meanwhile, unless
// nothing renews its lease anyway. The waiter then has the lock. When the holder goes on, we
// must say that it is lost, and whoever gives it back late must not take it from the waiter.
func (m *match) overrun(ours bool, told *string) error {
	waiter, err := m.hold(ours)
	if err != nil {
		return err
	}
	if ours || m.life != fixed {
		m.short.stop()
	}
	if m.life == bound {
		return m.kept(waiter, told)
	}
	if _, err := waiter.awaitTime(short + slack); err != nil {
		return fmt.Errorf("the waiter after the holder's lease: %w", err)
	}
	m.r.Acquisitions += 2
	m.short.resume()
	if err := m.asked(ours, told); err != nil {
		return err
	}
	// A third of ours looks whether the late unlock has freed what the waiter holds.
	third, err := m.start("a third", true, calm)
	if err != nil {
		return err
	}
	defer third.kill()
	answer, err := third.ask("try", m.name)
	if err != nil {
		return err
	}
	// Readers exclude no readers: what such a third gets, it gives back.
	if m.ourKind == "read" && strings.HasPrefix(answer, "ok") {
		if _, err := third.do("unlock"); err != nil {
			return err
		}
	} else if answer != "busy" {
		return violation{1, fmt.Sprintf("a third answers %q to a try after the late unlock, while %s holds", answer, waiter.who)}
	}
	_, err = waiter.do("unlock")
	return err
}

// asked notes what a holder that has lost its lock is told, when it asks and when it gives
// back. Ours must be told at once.
func (m *match) asked(ours bool, told *string) error {
	when := "at once"
	checked, err := m.short.ask("check")
	if err == nil && checked == "held" {
		when = "within a second"
		time.Sleep(time.Second)
		checked, err = m.short.ask("check")
	}
	if err != nil {
		return err
	}
	unlocked, err := m.short.ask("unlock")
	if err != nil {
		return err
	}
	lost := strings.HasPrefix(checked, "lost")
	switch {
	case checked == "none":
		when = "cannot ask"
	case !lost:
		when = "not told"
	}
	if strings.HasPrefix(unlocked, "ok") {
		*told = when + ", not at unlock"
	} else {
		*told = when + ", and at unlock"
	}
	if ours && (when != "at once" || !strings.HasPrefix(unlocked, "lost")) {
		return fmt.Errorf("our lock is lost, and we are told %q, and %q at the unlock", checked, unlocked)
	}
	return nil
}

// kept is overrun where a holder that is merely stopped keeps the lock.
func (m *match) kept(waiter *process, told *string) error {
	if err := waiter.blocked(short+settle, m.short); err != nil {
		return err
	}
	m.short.resume()
	if _, err := m.short.do("unlock"); err != nil {
		return err
	}
	if _, err := waiter.awaitTime(slack); err != nil {
		return fmt.Errorf("the waiter after the stopped holder's release: %w", err)
	}
	m.r.Acquisitions += 2
	*told = "keeps it"
	_, err := waiter.do("unlock")
	return err
}
