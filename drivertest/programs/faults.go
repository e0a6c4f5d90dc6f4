package programs

import (
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
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
		if m.conn.network != nil { // else there is nothing that could break
			r.sever(m)
			m.conn.network.Reset()
		}
	case Kill:
		m.conn.kill()
	case Forget:
		m.conn.setDeaf(true)
		time.AfterFunc(s.Time, func() { m.conn.setDeaf(false) })
		r.forget(m.Store)
	case Disturb:
		r.disturb(s.Time)
	}
}

// disturb has the store disturbed for a while. Programs run side by side, and two disturbances
// at once may be more than the store survives: who comes second has that of the first, which is
// at work on his program as well.
func (r *run) disturb(d time.Duration) {
	if !r.disturbed.CompareAndSwap(false, true) {
		return
	}
	undo := r.Disturb(r.tb)
	once := sync.OnceFunc(func() {
		undo()
		r.disturbed.Store(false)
	})
	r.mu.Lock()
	r.undo = append(r.undo, once)
	r.mu.Unlock()
	time.AfterFunc(d, once)
}

// sever says of a machine that its connections break: where these are what holds, the store has
// forgotten what the machine had, and that one believes for a moment more (S5).
func (r *run) sever(m *machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loseLocked(func(a *acquisition) bool { return slices.Contains(a.machines, m) })
}

// loseLocked says of acquisitions that they may be lost with their connections, where these are
// what holds.
func (r *run) loseLocked(which func(*acquisition) bool) {
	if r.traits.Liveness != driver.ConnectionBound {
		return
	}
	for _, a := range r.pending {
		a.forgotten = a.forgotten || which(a)
	}
	for _, h := range r.holds {
		h.forgotten = h.forgotten || which(h.acquisition)
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
