//go:build linux || darwin || freebsd

package filelock

import (
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

// decide answers for an entry behind others: does it hold, and if not, who denies it. It is
// driver.Decide on records.
//
// Of the blockers it returns the sessions that must be watched. If the last one alone
// denies (a writer in front of a thousand readers), that one is enough: while it stays,
// so does the answer.
func decide(ahead []*record, units, capacity int64) (held bool, deniers []sessionID) {
	free := capacity - units
	for i := len(ahead) - 1; i >= 0; i-- {
		deniers = append(deniers, ahead[i].session)
		u := min(ahead[i].weight(), capacity)
		if u > capacity-units {
			return false, deniers[len(deniers)-1:]
		}
		if free -= u; free < 0 {
			return false, deniers
		}
	}
	return free >= 0, nil
}

// affectedBy returns the entries that the removal of one concerns: those behind it whose
// blockers, without it, no longer deny them by themselves. They either hold now or must
// watch another session. For a mutex that is the next in the queue alone; for the
// last holder in front of a batch of readers it is the batch. An entry that watches one
// sole blocker, or more of them than need be, is covered as well: while the blockers
// computed here deny, so do those it watches, which reach at least as far.
//
// An entry e behind, with `between` units between the two, has the leaving one
// among its blockers iff between <= free, free being what e leaves of the capacity. Its
// blockers then go on ahead of the leaving one by as many units as it takes to deny.
func affectedBy(queue []*record, leaves int) (who []wakeTarget) {
	own, capacity := queue[leaves].weight(), int64(queue[leaves].capacity)
	older := int64(0) // the dead among them count: who is dead is for the waiter to find out
	for _, r := range queue[:leaves] {
		older += r.weight()
	}
	between := int64(0)
	for _, r := range queue[leaves+1:] {
		if between >= capacity {
			break
		}
		free := capacity - r.weight() - between
		if free >= 0 && older+own > free { // it is denied, and the leaving one is among its blockers
			ahead := int64(0) // units of those blockers that are ahead of that one
			for i := leaves - 1; ahead+own <= free; i-- {
				ahead += queue[i].weight()
			}
			if ahead <= free {
				w := wakeTarget{session: r.session, ticket: r.ticket}
				if older <= free {
					w.holds = r.seq
				}
				who = append(who, w)
			}
		}
		between += r.weight()
	}
	return who
}

// place is Verdict.Place of an entry behind others; see driver.Place.
func place(ahead []*record, capacity int64) int {
	for i, r := range ahead {
		if capacity -= r.weight(); capacity < 0 {
			return len(ahead) - i + 1
		}
	}
	return 1
}

// checkKind refuses a request of another capacity than the queue has. All entries agree
// on it, so the newest is enough.
func checkKind(queue []*record, ask *driver.Request) error {
	if len(queue) == 0 {
		return nil
	}
	if c := int64(queue[len(queue)-1].capacity); c != ask.Capacity {
		return &driver.MismatchError{Name: ask.Name, Want: ask.Capacity, Found: c}
	}
	return nil
}

// sessionsOf lists the sessions with entries in a queue.
func sessionsOf(queue []*record) (ids []sessionID) {
	for _, r := range queue {
		ids = append(ids, r.session)
	}
	return ids
}
