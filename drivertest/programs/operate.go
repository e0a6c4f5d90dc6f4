package programs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hasplock/hasp"
)

// values are the values that an entry has shown, or may show.
type values struct {
	busy      bool     // one is being published: two at once have no order
	confirmed string   // the last that the store has confirmed
	open      []string // those since then whose outcome is unknown
	tried     []string // all, in their order
}

// publish replaces the value of a term, and asks for the leader when the store has confirmed it.
func (r *run) publish(h *hold, value string) {
	r.mu.Lock()
	v := r.values[h.ids[0]]
	if v.busy {
		r.mu.Unlock()
		return
	}
	v.busy = true
	v.open = append(v.open, value)
	v.tried = append(v.tried, value)
	r.useLocked(h.step.Name, "Publish")
	r.mu.Unlock()
	r.jobs.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, 20*r.base)
		defer cancel()
		err := h.term.Publish(ctx, []byte(value))
		r.mu.Lock()
		v.busy = false
		if err == nil {
			// An earlier publication that is not confirmed may no longer replace this one.
			v.confirmed, v.open = value, nil
		}
		r.mu.Unlock()
		r.checkLeader(h)
	})
}

// checkLeader demands that the leader's value is the leader's.
func (r *run) checkLeader(h *hold) {
	// A publication may be confirmed between the answer and this look at it, and another one may
	// even begin and replace its value: all that were tried meanwhile may be what the answer has.
	before, tried := r.shown(h.ids[0])
	l, err := r.operators[h.machine.Store].Election(r.name(h.step.Name)).Leader(r.ctx)
	if err != nil {
		return // there is no leader any more
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.values[l.ID]
	if v == nil || l.ID != h.ids[0] {
		return
	}
	may := slices.Concat([]string{v.confirmed}, v.open, before, v.tried[tried:])
	if shown := string(l.Value); !slices.Contains(may, shown) {
		r.failLocked("the published value is not the leader's", "%s shows %q, has published %+v", l.ID, l.Value, *v)
	}
}

// shown are the values that an entry may show at this moment, and the number of those that were
// tried so far.
func (r *run) shown(id string) (values []string, tried int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.values[id]
	if v == nil {
		return nil, 0
	}
	return append([]string{v.confirmed}, v.open...), len(v.tried)
}

// handOn exports a lease, and imports it at another client.
func (r *run) handOn(i int, s Step, to *machine) {
	h := r.heldLease(s.Lease, func(h *hold) bool { return h.multi == nil })
	if h == nil {
		return
	}
	text, err := h.lease.Export()
	if err != nil {
		return
	}
	r.mu.Lock()
	h.over = true
	for _, o := range r.holds {
		o.exported = o.exported || r.share(o, h)
	}
	r.moment++
	a := &acquisition{
		step: Step{Do: HandOn, Name: h.step.Name}, note: fmt.Sprintf("step %d", i), machine: to, client: s.Client,
		claims: []claim{{to.Store, h.step.Name, h.units[0], h.claims[0].capacity}}, began: r.moment, old: true,
	}
	r.useLocked(h.step.Name, "HandOn")
	r.mu.Unlock()
	r.jobs.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, 20*r.base)
		defer cancel()
		l, err := to.client.Import(ctx, text)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stranded = r.stranded || err != nil
		switch {
		case err == nil && l.Token() != h.tokens[0]:
			r.failLocked("S2: an import has another token", "%s: %d, exported %d", a.note, l.Token(), h.tokens[0])
		case err == nil:
			a.forgotten = a.forgotten || h.forgotten
			r.values[l.ID()] = r.values[h.ids[0]]
			r.grants[l.ID()] = r.grant(h.ids[0])
			imported := &hold{lease: l, acquisition: a}
			if r.evicted[h.ids[0]] {
				r.evicted[l.ID()] = true
			}
			r.registerLocked(imported)
		case errors.Is(err, hasp.ErrMismatch), errors.Is(err, hasp.ErrUnsupported):
			r.failLocked("an import is refused", "%s: %v", a.note, err)
		}
	})
}
