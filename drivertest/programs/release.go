package programs

import (
	"context"
	"errors"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// release gives a hold up.
func (r *run) release(h *hold) {
	r.mu.Lock()
	if h.over {
		r.mu.Unlock()
		return
	}
	held := h.held()
	h.over, h.given = true, true
	alone := true // releasing one of several leases of an entry does not touch the store
	for _, o := range r.holds {
		alone = alone && (o == h || !r.share(o, h))
	}
	// So has a LockAll that waits for its other names and had this one from its caller.
	for _, a := range r.pending {
		alone = alone && !(a.within != nil && a.machine == h.machine && a.step.Do == LockAll && a.step.Opts.Reentrant)
	}
	r.useLocked(h.step.Name, "Release")
	r.mu.Unlock()
	r.jobs.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 20*r.base)
		defer cancel()
		var err error
		switch {
		case h.scope != nil:
			err = h.scope.leave()
		case h.multi != nil:
			err = h.multi.Release(ctx)
		case h.term != nil:
			err = h.term.Release(ctx)
		default:
			err = h.lease.Release(ctx)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.checkReleaseLocked(h, held, alone, err)
	})
}

// checkReleaseLocked checks S7 for a release.
func (r *run) checkReleaseLocked(h *hold, held, alone bool, err error) {
	switch {
	case h.scope != nil && h.term != nil: // Run tells its observers alone
	case err == nil && !held:
		r.failLocked("S7: a release of what was lost is nil", "%s", h.note)
	case err == nil && alone && h.overtaken && !r.evicted[h.ids[0]]:
		r.failLocked("S7: a release is nil although another held", "%s", h.note)
	case err != nil && r.fake && !r.faulty && !h.machine.closed && !r.anyEvicted(h) && h.step.Opts.MaxHold == 0 && h.step.Opts.Stall == 0 && h.within == nil && h.multi == nil:
		r.failLocked("a release failed without a reason", "%s: %v", h.note, err)
	}
}

func (r *run) anyEvicted(h *hold) bool {
	for _, id := range h.ids {
		if r.evicted[id] {
			return true
		}
	}
	return false
}

// downgrade makes a writer a reader. It counts as a reader from before the request.
func (r *run) downgrade(h *hold) {
	r.mu.Lock()
	before := h.units[0]
	if h.claims[0].capacity != driver.Whole {
		r.mu.Unlock()
		return
	}
	h.downgraded = true
	for _, o := range r.holds {
		if o.ids[0] == h.ids[0] {
			o.units[0] = 1 // MinHold keeps this, too
		}
	}
	r.useLocked(h.step.Name, "Downgrade")
	r.mu.Unlock()
	r.jobs.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, 20*r.base)
		defer cancel()
		if err := h.lease.Downgrade(ctx); errors.Is(err, hasp.ErrDeadlock) {
			r.mu.Lock()
			defer r.mu.Unlock()
			h.units[0] = before // the downgrade was not done
		}
	})
}
