//go:build linux || darwin || freebsd

package filelock

import (
	"slices"

	"github.com/hasplock/hasp/driver"
)

// wakeTarget is an entry as others need to know it: which session and ticket to signal.
type wakeTarget struct {
	session sessionID
	ticket  uint64

	// holds is the entry's seq if it holds without the one that leaves, else 0: then it must
	// look. Once true, that stays true for as long as the entry is in the queue: those ahead only
	// leave or get smaller, and new ones come behind.
	holds uint64
}

// deadSessions are sessions that are known to have ended.
type deadSessions map[sessionID]bool

// decide answers for an entry in slot me (0: it has not entered) behind prev:
// does it hold, and if not, who denies it. It is driver.Decide on the file, read backwards
// and no further than needed: for a mutex with ten thousand waiters that is one record.
//
// Of the blockers it returns the sessions that must be watched. If the last one alone
// denies (a writer in front of a thousand readers), that one is enough: while it stays,
// so does the answer.
//
// Entries of the dead, and what has left but is still linked, are removed in passing.
// Another waiter that waits for one of the dead is told of that death by the kernel, and for one
// that left, by its owner or by its owner's death: no signal is needed for them.
func (q *queueFile) decide(me, prev uint32, units, capacity int64, gone deadSessions) (held bool, deniers []sessionID, err error) {
	free := capacity - units
	for slot, newer := prev, me; slot != 0; {
		r, err := q.record(slot)
		if err != nil {
			return false, nil, err
		}
		if r.state == left || gone[r.session] {
			if err := q.remove(slot, r, newer); err != nil {
				return false, nil, err
			}
			slot = r.prev
			continue
		}
		u := min(max(int64(r.units), 1), capacity)
		deniers = append(deniers, r.session)
		if u > free {
			if u > capacity-units {
				deniers = deniers[len(deniers)-1:]
			}
			return false, deniers, nil
		}
		free -= u
		newer, slot = slot, r.prev
	}
	return free >= 0, nil, nil
}

// affectedBy returns the entries that the removal of an entry concerns: those behind it whose
// blockers, without it, no longer deny them by themselves. They either hold now or must
// watch another session. For a mutex that is the next in the queue alone; for the
// last holder in front of a batch of readers it is the batch. An entry that watches one
// sole blocker, or more of them than need be, is covered as well: while the blockers
// computed here deny, so do those it watches, which reach at least as far.
//
// An entry e behind, with `between` units between the two, has the leaving one
// among its blockers iff between <= free, free being what e leaves of the capacity. Its
// blockers then go on ahead of the leaving one by as many units as it takes to deny.
func (q *queueFile) affectedBy(slot uint32, r record, tail uint32) (who []wakeTarget, err error) {
	capacity := int64(r.capacity)
	older := unitSums{q: q, next: r.prev}
	own := min(int64(r.units), capacity)
	for between := int64(0); between < capacity; {
		next, _, err := q.newerOf(slot, &r, tail)
		if err != nil || next == 0 {
			return who, err
		}
		if r, err = q.record(next); err != nil {
			return who, err
		}
		slot = next
		if r.state == left {
			continue
		}
		units := min(max(int64(r.units), 1), capacity)
		if free := capacity - units; between <= free {
			ahead, denied, err := older.exceeding(free - between - own)
			if err != nil {
				return who, err
			}
			if denied && between+ahead <= free {
				w := wakeTarget{session: r.session, ticket: r.ticket}
				// The dead ahead count: who is dead is for the waiter to find out.
				if _, more, err := older.exceeding(free - between); err != nil {
					return who, err
				} else if !more {
					w.holds = r.seq
				}
				who = append(who, w)
			}
		}
		between += units
	}
	return who, nil
}

// unitSums has the sums of the units from some entry backwards. It reads each at most once,
// and none before it is needed.
type unitSums struct {
	q    *queueFile
	next uint32
	sums []int64
}

// exceeding returns the least sum of the nearest entries that is more than n; with n < 0
// none are needed. enough is false if all of them together are not.
func (p *unitSums) exceeding(n int64) (sum int64, enough bool, err error) {
	if n < 0 {
		return 0, true, nil
	}
	if i, _ := slices.BinarySearch(p.sums, n+1); i < len(p.sums) {
		return p.sums[i], true, nil
	}
	if len(p.sums) > 0 {
		sum = p.sums[len(p.sums)-1]
	}
	for p.next != 0 && sum <= n {
		r, err := p.q.record(p.next)
		if err != nil {
			return 0, false, err
		}
		p.next = r.prev
		if r.state == queued {
			sum += min(max(int64(r.units), 1), int64(r.capacity))
			p.sums = append(p.sums, sum)
		}
	}
	return sum, sum > n, nil
}

// checkKind refuses a request of another capacity than the queue has. All entries agree
// on it, so the newest is enough.
func checkKind(name string, tail *record, ask *driver.Request) error {
	if int64(tail.capacity) != ask.Capacity {
		return &driver.MismatchError{Name: name, Want: ask.Capacity, Found: int64(tail.capacity)}
	}
	return nil
}

// sessions lists the sessions with entries in a queue.
func (q *queueFile) sessions(tail uint32) (ids []sessionID, err error) {
	seen := deadSessions{}
	err = q.walk(tail, func(_ uint32, r *record) bool {
		if r.state == queued && !seen[r.session] {
			seen[r.session] = true
			ids = append(ids, r.session)
		}
		return true
	})
	return ids, err
}

// removeDead removes every entry of dead sessions from a queue.
func (q *queueFile) removeDead(tail uint32, gone deadSessions) error {
	for slot, newer := tail, uint32(0); slot != 0; {
		r, err := q.record(slot)
		if err != nil {
			return err
		}
		if r.state == left || gone[r.session] {
			if err := q.remove(slot, r, newer); err != nil {
				return err
			}
		} else {
			newer = slot
		}
		slot = r.prev
	}
	return nil
}

// removeEntry removes an entry from the queue and returns what to signal for it. before,
// if given, is called with them ahead of the removal.
func (q *queueFile) removeEntry(slot uint32, r record, k key, before func([]wakeTarget)) ([]wakeTarget, error) {
	tail, _, err := q.find(k)
	if err == nil {
		r, err = q.record(slot) // find may have changed its links, where it has taken away what had left
	}
	if err != nil {
		return nil, err
	}
	newer, linked, err := q.newerOf(slot, &r, tail)
	if err != nil {
		return nil, err
	}
	if !linked {
		return nil, &damageError{file: q.name, what: "an entry is in no queue"}
	}
	var who []wakeTarget
	if newer != 0 {
		if who, err = q.affectedBy(slot, r, tail); err != nil {
			return nil, err
		}
	}
	if before != nil {
		before(who)
	}
	return who, q.remove(slot, r, newer)
}

// holderSearchLimit is how far back holder looks.
const holderSearchLimit = 64

// holder returns the owner of the oldest entry, for messages, if it is near and readable.
func (q *queueFile) holder(tail uint32) (owner string) {
	steps := 0
	_ = q.walk(tail, func(slot uint32, r *record) bool {
		if r.prev == 0 {
			d, _ := q.details(slot, r)
			owner = d.Owner
		}
		steps++
		return steps <= holderSearchLimit
	})
	return owner
}
