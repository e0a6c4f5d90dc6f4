package programs

import (
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
	case CutCalls:
		m.conn.spoil(n, plan{cut: max(s.Time, time.Microsecond)})
	case Silence:
		m.conn.silence()
		time.AfterFunc(s.Time, m.conn.mend)
	case Deaf:
		m.conn.setDeaf(true)
		time.AfterFunc(s.Time, func() { m.conn.setDeaf(false) })
	case Reset:
		if m.conn.network != nil { // otherwise there is nothing that could break
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

// disturb disturbs the store for a while. Programs run concurrently, and the store may not survive
// two disturbances at once: the second program uses the disturbance of the first, which affects its
// clients as well.
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

// sever records that a machine's connections break: if connections hold the locks, the store has
// dropped the machine's entries, and the machine still believes for a moment (S5).
func (r *run) sever(m *machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loseLocked(func(a *acquisition) bool { return a.machine == m })
}

// loseLocked records that acquisitions may be lost with their connections, if connections hold the
// locks.
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

// forget makes a store lose its entries. No earlier grant of it is exclusive any more.
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
