package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	settle = 100 * time.Millisecond // until a client that was asked for a lock waits for it
	shakes = 9                      // hand-overs that are measured, each way

	// hearsay is how long a library that learns of a loss from its server may take to report it.
	hearsay = 10 * time.Second

	// precision is how far a server's clock, read now and then, may lag behind this machine's.
	precision = 100 * time.Millisecond
)

// violation reports that n locks were held by two, or n increments were lost.
type violation struct {
	n    int
	text string
}

func (v violation) Error() string { return v.text }

// step is one test of a pair.
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

// exclusion makes both sides increment a counter that only the lock protects.
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
		if err := counted(p, file); err != nil {
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

// counted waits for the end of a client's count for as long as the counter grows.
func counted(p *process, file string) error {
	before, grown := "", time.Now()
	for {
		_, err := p.awaitTime(time.Second)
		if !errors.Is(err, errNoAnswer) {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if now := string(text); now != before {
			before, grown = now, time.Now()
		}
		if time.Since(grown) > patience {
			return fmt.Errorf("%s: the counter is still %q after %s", p.label, before, patience)
		}
	}
}

// tries checks that each side is refused, without waiting, while the other holds.
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
			return violation{1, fmt.Sprintf("%s has it by a try while %s holds", s.other.label, s.holder.label)}
		case answer != "busy" && answer != "none":
			return fmt.Errorf("try: %s answers %q", s.other.label, answer)
		}
		if _, err := s.holder.do("unlock"); err != nil {
			return err
		}
	}
	return nil
}

// wake makes one side wait until the other releases, several times.
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
		got, err := waiter.awaitTime(patience)
		if err != nil {
			return fmt.Errorf("the waiter after the release: %w", err)
		}
		if got.Before(left) {
			return violation{1, fmt.Sprintf("%s had it %s before %s let go", waiter.label, left.Sub(got), holder.label)}
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

// hold starts a client of one side with a short lease, which takes the lock after asked, and makes
// the other side wait behind it.
func (m *match) hold(ours bool) (waiter *process, asked time.Time, err error) {
	label, waiter := "the other, with a short lease,", m.ours
	if ours {
		label, waiter = "hasp, with a short lease,", m.theirs
	}
	if m.short, err = m.start(label, ours, m.lease); err == nil {
		asked = time.Now()
		_, err = m.short.do("lock", m.nameOf(ours))
	}
	if err != nil {
		// With a calm lease the same has just succeeded.
		return nil, asked, lapse{fmt.Sprintf("with a lease of %s: %v", m.lease, err)}
	}
	return waiter, asked, waiter.send("lock", m.nameOf(!ours))
}

// killed kills the holder by SIGKILL. The waiter gets the lock when the holder's lease has ended,
// or at once where the lock is bound to a connection.
func (m *match) killed(ours bool, after *millis) error {
	waiter, _, err := m.hold(ours)
	if err != nil {
		return err
	}
	if err := waiter.blocked(settle, m.short); err != nil {
		return m.intruded(err)
	}
	dead := time.Now()
	m.short.kill()
	m.short = nil
	got, err := waiter.awaitTime(patience)
	if err != nil {
		return fmt.Errorf("the waiter after the holder's death: %w", err)
	}
	if got.Before(dead) {
		// A lock that does not exclude would have been had before we looked.
		return lapse{fmt.Sprintf("%s had it %s before the holder was killed", waiter.label, dead.Sub(got))}
	}
	*after = millis(got.Sub(dead))
	m.r.Acquisitions += 2
	_, err = waiter.do("unlock")
	return err
}

// overrun makes the holder work for longer than its lease: it is stopped meanwhile, unless its
// lease is not renewed anyway. The waiter then has the lock. When the holder continues, hasp must
// report the loss, and a late release must not take the lock from the waiter.
func (m *match) overrun(ours bool, told *string) error {
	waiter, asked, err := m.hold(ours)
	if err != nil {
		return err
	}
	renewed := ours || m.life != fixed
	if renewed {
		m.short.stop()
	}
	if m.life == bound {
		return m.kept(waiter, told)
	}
	got, err := waiter.awaitTime(patience)
	if err != nil {
		return fmt.Errorf("the waiter after the holder's lease: %w", err)
	}
	if early := asked.Add(m.lease - precision).Sub(got); !renewed && early > 0 {
		return violation{1, fmt.Sprintf("%s has it %s before the lease of %s is over", waiter.label, early, m.short.label)}
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
	answer, err := third.ask("try", m.nameOf(true))
	if err != nil {
		return err
	}
	// Readers exclude no readers: what such a third gets, it gives back.
	if m.ourKind == "read" && strings.HasPrefix(answer, "ok") {
		if _, err := third.do("unlock"); err != nil {
			return err
		}
	} else if strings.HasPrefix(answer, "ok") {
		return violation{1, fmt.Sprintf("a third has it by a try after the late unlock, while %s holds", waiter.label)}
	} else if answer != "busy" {
		return fmt.Errorf("a third that tries answers %q", answer)
	}
	_, err = waiter.do("unlock")
	return err
}

// asked records what a holder that has lost its lock learns, when it asks and when it releases.
// hasp's must learn it at once.
func (m *match) asked(ours bool, told *string) error {
	when, resumed := "at once", time.Now()
	checked, err := m.short.ask("check")
	for !ours && err == nil && checked == "held" && time.Since(resumed) < hearsay {
		time.Sleep(10 * time.Millisecond)
		checked, err = m.short.ask("check")
		when = "later"
		if time.Since(resumed) < time.Second {
			when = "within a second"
		}
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

// kept is overrun for locks that a stopped holder keeps.
func (m *match) kept(waiter *process, told *string) error {
	if err := waiter.blocked(m.lease+settle, m.short); err != nil {
		return err
	}
	m.short.resume()
	if _, err := m.short.do("unlock"); err != nil {
		return err
	}
	if _, err := waiter.awaitTime(patience); err != nil {
		return fmt.Errorf("the waiter after the stopped holder's release: %w", err)
	}
	m.r.Acquisitions += 2
	*told = "keeps it"
	_, err := waiter.do("unlock")
	return err
}
