package programs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
)

// claim is the part of one lock that an acquisition wants, and a hold has.
type claim struct {
	store, name     int
	units, capacity int64
}

// hold is the result of an acquisition.
type hold struct {
	lease *hasp.Lease // or
	multi *hasp.MultiLease
	term  *hasp.Term
	value string // that it campaigned with
	scope *scope // of the function that it lasts for; nil: it is released

	*acquisition
	each    []*hasp.Lease // by claim
	by      []*machine    // the same
	ids     []string      // of the entries, by claim
	tokens  []uint64      // the same
	granted time.Time     // when the call had returned
	at      int           // the value of moment then
	units   []int64       // less after a Downgrade

	downgraded bool

	over      bool // it was given up
	given     bool // Release was called
	overtaken bool // another was granted what it excludes, though an operator or the store's memory may be the cause
	lastTrue  time.Time
}

func (h *hold) leases() []*hasp.Lease {
	if h.multi != nil {
		return h.multi.Leases()
	}
	return []*hasp.Lease{h.lease}
}

func (h *hold) held() bool {
	if h.multi != nil {
		return h.multi.Held()
	}
	return h.lease.Held()
}

func (h *hold) context() context.Context {
	if h.scope != nil {
		return h.scope.work
	}
	if h.multi != nil {
		return h.multi.Context()
	}
	return h.lease.Context()
}

// bind is [hasp.Lease.Bind].
func (h *hold) bind(ctx context.Context) context.Context {
	if h.multi != nil {
		return h.multi.Bind(ctx)
	}
	return h.lease.Bind(ctx)
}

// returned is the end of an acquisition.
func (r *run) returned(a *acquisition, h *hold, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, p := range r.pending {
		if p == a {
			r.pending = append(r.pending[:i:i], r.pending[i+1:]...)
		}
	}
	if err != nil {
		r.stranded = r.stranded || !refusedTry(err) // it may have been too late to take its request back
		r.checkRefusalLocked(a, err)
		return
	}
	if a.step.Do.ofSeveral() {
		a.took(h.lease)
	}
	h.acquisition = a
	r.registerLocked(h)
}

// registerLocked adds a hold after it was checked against all others.
func (r *run) registerLocked(h *hold) {
	r.moment++
	h.at, h.granted = r.moment, time.Now()
	leases := h.leases()
	if len(leases) != len(h.claims) {
		r.failLocked("S1: LockAll has not taken all", "%s: %d leases for %d locks", h.note, len(leases), len(h.claims))
		return
	}
	for i, c := range h.claims {
		l, m := leases[i], h.machine
		if h.multi != nil {
			if l, m = r.leaseOf(leases, c); l == nil {
				r.failLocked("S1: LockAll has not taken all", "%s: name %d of store %d is not among the leases", h.note, c.name, c.store)
				return
			}
		}
		h.by = append(h.by, m)
		h.each = append(h.each, l)
		h.ids, h.tokens, h.units = append(h.ids, l.ID()), append(h.tokens, l.Token()), append(h.units, c.units)
	}
	r.inheritEvictionLocked(h)
	for _, o := range r.holds {
		if r.share(o, h) {
			h.old, h.forgotten = true, h.forgotten || o.forgotten
		}
	}
	for i := range h.claims {
		r.checkGrantLocked(h, i)
	}
	again := h.step.Opts.Reentrant && h.within != nil
	for _, id := range h.ids {
		if h.term != nil && !again || r.values[id] == nil {
			r.values[id] = &values{confirmed: h.value} // a lease that is taken again still shows the first value
		}
	}
	r.holds = append(r.holds, h)
	if h.term != nil {
		r.jobs.Go(func() { r.checkLeader(h) })
	}
}

// leaseOf finds the lease of a claim. Two stores have the same names: the ids of their entries
// tell which client took them.
func (r *run) leaseOf(leases []*hasp.Lease, c claim) (*hasp.Lease, *machine) {
	for _, l := range leases {
		for _, m := range r.machines {
			if m.Store == c.store && l.Name() == r.name(c.name) && m.conn.entered(l.ID()) {
				return l, m
			}
		}
	}
	return nil, nil
}

// checkGrantLocked checks S1, S2, S4 and MinHold for a new grant: the present holds, and those that
// must still be kept free, must leave room for it. It asks the others whether they hold before it
// asks this one, so that all held at one moment if all say yes.
func (r *run) checkGrantLocked(h *hold, i int) {
	c := h.claims[i]
	stale := h.forgotten || r.evicted[h.ids[i]]     // the store has removed it, and will report that
	units := map[string]int64{h.ids[i]: h.units[i]} // by entry: leases of one entry share its units
	var beside []string
	for _, o := range r.holds {
		for j, oc := range o.claims {
			if oc.store != c.store || oc.name != c.name {
				continue
			}
			r.checkTokenLocked(h, i, o, j)
			why := r.keeps(o, j, h.ids[i] == o.ids[j])
			if why == "" {
				continue
			}
			if stale {
				continue
			}
			if o.forgotten || r.evicted[o.ids[j]] {
				// Not the lock's fault; but a client that believes may not report its release as a
				// success.
				o.overtaken = o.overtaken || !o.over && h.held() && h.units[i]+o.units[j] > c.capacity && h.ids[i] != o.ids[j]
				continue
			}
			if h.ids[i] == o.ids[j] && !(h.step.Opts.Reentrant && h.within != nil) && o.step.Do != LockAll {
				r.failLocked("S1: one entry has two owners", "%s was granted beside %s, which %s\n%s", h.note, o.note, why, o.ids[j])
			}
			units[o.ids[j]] = max(units[o.ids[j]], o.units[j])
			beside = append(beside, fmt.Sprintf("%s (units %d) %s", o.note, o.units[j], why))
		}
	}
	var sum int64
	for _, n := range units {
		sum += n
	}
	if sum > c.capacity && h.held() {
		r.failLocked("S1: more is held than there is", "%s (units %d of %d, token %d) was granted beside %v", h.note, h.units[i], c.capacity, h.tokens[i], beside)
	}
}

// keeps says why a hold keeps others out of one of its locks at this moment; "" if it does not.
// same: it is asked for a lease of the same entry, which MinHold and the safety margin do not keep
// out.
func (r *run) keeps(o *hold, j int, same bool) string {
	now := time.Now()
	if !o.over && o.held() {
		o.lastTrue = now
		return "believes that it holds"
	}
	if same || !r.fake {
		return ""
	}
	var lost *hasp.LostError
	if errors.As(o.each[j].Err(), &lost) {
		switch lost.Reason {
		case hasp.ReasonExpired, hasp.ReasonClockJump, hasp.ReasonOverdue, hasp.ReasonStalled:
			if margin := o.by[j].margin(); now.Sub(lost.Since) < margin && !o.by[j].closed {
				return fmt.Sprintf("believed until %s ago, less than its margin of %s", now.Sub(lost.Since), margin)
			}
		}
		return ""
	}
	if least := o.step.Opts.MinHold; o.given && !r.entryLostLocked(o) && !o.machine.shaken && !o.machine.closed && o.within == nil && o.multi == nil && now.Sub(o.granted) < least {
		return fmt.Sprintf("was granted %s ago, with MinHold %s", now.Sub(o.granted), least)
	}
	return ""
}

// checkLosses requires a reason for each reported loss: without a fault, and before trust has
// ended, only an operator removes an entry.
func (r *run) checkLosses() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.holds {
		for j, l := range h.each {
			var lost *hasp.LostError
			if !errors.As(l.Err(), &lost) || lost.Reason != hasp.ReasonDenied || r.faulty || h.over || h.forgotten || r.anyEvicted(h) {
				continue
			}
			if trusted := lost.Since.Sub(lost.Confirmed); trusted < h.by[j].TTL/2 {
				r.failLocked("S6: a lock is lost without a reason", "%s, %s after it was confirmed: %v", h.note, trusted, lost)
			}
		}
	}
}

// entryLostLocked reports whether the entry of a hold was lost with another lease of it.
func (r *run) entryLostLocked(h *hold) bool {
	for _, o := range r.holds {
		if r.share(o, h) && (errors.Is(o.each[0].Err(), hasp.ErrLost) || o.multi != nil && errors.Is(o.multi.Err(), hasp.ErrLost)) {
			return true
		}
	}
	return false
}

// margin is that of the client, as GUARANTEES.md has it.
func (m *machine) margin() time.Duration {
	if m.Margin > 0 {
		return m.Margin
	}
	return max(m.TTL/10, 50*time.Millisecond)
}

// checkTokenLocked checks S2 for two grants: the one that was granted before the other was
// requested, or excludes it, has the smaller token.
func (r *run) checkTokenLocked(h *hold, i int, o *hold, j int) {
	if !r.traits.Fencing {
		return
	}
	if h.ids[i] == o.ids[j] {
		if h.tokens[i] != o.tokens[j] {
			r.failLocked("S2: one grant has two tokens", "%s has token %d, %s has %d", h.note, h.tokens[i], o.note, o.tokens[j])
		}
		return
	}
	exclusive := h.units[i]+o.units[j] > h.claims[i].capacity && !o.downgraded
	// A hold that excludes the other was granted after that had ended; but LockAll has some of its
	// locks for longer than it has all. And a client that learns late of a grant, which the store
	// has removed by now, may learn of it after others.
	exclusive = exclusive && h.multi == nil && h.held() && !h.forgotten && !r.evicted[h.ids[i]]
	if !h.old && (o.at < h.began || exclusive) && h.tokens[i] <= o.tokens[j] {
		r.failLocked("S2: a token does not grow", "%s has token %d, after %s with %d", h.note, h.tokens[i], o.note, o.tokens[j])
	}
}

// share reports whether two holds have a grant in common.
func (r *run) share(o, h *hold) bool {
	for _, a := range o.ids {
		for _, b := range h.ids {
			if a == b {
				return true
			}
		}
	}
	return false
}

// refusedTry reports that the store has answered a try with no.
func refusedTry(err error) bool {
	return errors.Is(err, hasp.ErrBusy) || errors.Is(err, hasp.ErrQuarantine)
}

// checkRefusalLocked knows the errors with which an acquisition may end. With a fault nearly all
// are allowed.
func (r *run) checkRefusalLocked(a *acquisition, err error) {
	allowed := r.faulty || a.machine.closed || r.ctx.Err() != nil ||
		refusedTry(err) && (a.step.Do == TryLock || a.step.Do == TryRLock || a.step.Do == TryAcquire) ||
		errors.Is(err, context.DeadlineExceeded) && (a.step.Time > 0 || a.step.Opts.Within) ||
		errors.Is(err, context.Canceled) && (a.canEnd || a.within != nil) ||
		errors.Is(err, hasp.ErrDeadlock) && (a.within != nil || a.step.Opts.Deadlock) ||
		(errors.Is(err, hasp.ErrLost) || errors.Is(err, hasp.ErrNotHeld)) && a.within != nil ||
		errors.Is(err, hasp.ErrClosed) && a.step.Do == LockAll // of the next client
	if !r.fake && !errors.Is(err, hasp.ErrMismatch) && !errors.Is(err, hasp.ErrUnsupported) && !errors.Is(err, hasp.ErrInvalid) {
		allowed = true // a busy machine answers too late, to any client
	}
	if !allowed {
		r.failLocked("an acquisition failed without a reason", "%s: %v", a.note, err)
	}
}
