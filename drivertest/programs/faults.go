package programs

import (
	"time"
)

// spoil is a fault.
func (r *run) spoil(s Step, m *machine) {
	r.mu.Lock()
	r.faulty, m.shaken = true, true
	r.useLocked(-1, feature(s.Do))
	r.mu.Unlock()
	n := max(s.Units, 1)
	switch s.Do {
	case LoseAnswers:
		m.conn.spoil(n, plan{lose: true})
	case FailRequests:
		m.conn.spoil(n, plan{fail: true})
	case LateAnswers:
		m.conn.spoil(n, plan{lateness: s.Time})
	case LateRequests:
		m.conn.spoil(n, plan{requestLate: s.Time})
	case Silence:
		m.conn.silence()
		time.AfterFunc(s.Time, m.conn.mend)
	case Deaf:
		m.conn.setDeaf(true)
		time.AfterFunc(s.Time, func() { m.conn.setDeaf(false) })
	case Reset:
		m.conn.network.Reset()
	case Kill:
		m.conn.cut(true)
	case Forget:
		m.conn.setDeaf(true)
		time.AfterFunc(s.Time, func() { m.conn.setDeaf(false) })
		r.forget(m.Store)
	case Disturb:
		undo := r.Disturb(r.tb)
		r.mu.Lock()
		r.disturbed = true
		r.undo = append(r.undo, undo)
		r.mu.Unlock()
		time.AfterFunc(s.Time, undo)
	}
}

func (a *acquisition) forget(store int) {
	for _, c := range a.claims {
		a.forgotten = a.forgotten || c.store == store
	}
}

// forget has a store lose what it has. From before that moment nothing granted there is
// exclusive any more.
func (r *run) forget(store int) {
	r.mu.Lock()
	for _, m := range r.machines {
		m.shaken = m.shaken || m.Store == store
	}
	for _, a := range r.pending {
		a.forget(store)
	}
	for _, h := range r.holds {
		h.forget(store)
	}
	r.mu.Unlock()
	r.at[store].Forget()
}
