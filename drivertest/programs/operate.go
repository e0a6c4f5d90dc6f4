package programs

import (
	"context"
	"slices"
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
