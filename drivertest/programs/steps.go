package programs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// step does one step. An operation that may take time continues in the background.
func (r *run) step(i int, s Step) {
	m := r.machines[s.Client]
	var on *hold
	if s.Do.onLease() {
		fits := func(h *hold) bool { return s.Do != Publish || h.term != nil }
		on = r.heldLease(s.Lease, fits)
		// In real time nothing is granted at once, and a program ends soon.
		for end := time.Now().Add(r.base / 20); on == nil && !r.fake && r.waiting() > 0 && time.Now().Before(end); {
			time.Sleep(r.base / 1000)
			on = r.heldLease(s.Lease, fits)
		}
		if on == nil {
			return
		}
		m = on.machine
	}
	if s.Lose || s.Late > 0 {
		r.mu.Lock()
		r.faulty, m.shaken = true, true
		r.mu.Unlock()
		m.conn.spoilNext(plan{lose: s.Lose, lateness: s.Late})
	}
	switch {
	case s.Do.acquires():
		r.acquire(i, s, m)
		return
	case s.Do.fault():
		r.spoil(s, m)
		return
	}
	switch s.Do {
	case Cancel:
		r.abort(s)
	case Evict:
		r.evict(s)
	case ShortWaits:
		r.use(-1, "ShortWaits")
		m.conn.shorten(max(s.Time, time.Microsecond))
		time.AfterFunc(r.base, func() { m.conn.shorten(0) })
	case Close:
		r.close(m)
	default:
		r.operate(i, s.Do, on)
	}
}

// heldLease picks a held lease that fits; nil if there is none.
func (r *run) heldLease(i int, fits func(*hold) bool) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := slices.DeleteFunc(slices.Clone(r.holds), func(h *hold) bool { return h.over || !fits(h) })
	if len(held) == 0 {
		return nil
	}
	return held[i%len(held)]
}

// waiting is the number of acquisitions that have not returned.
func (r *run) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending)
}

// operate does an operation of a holder.
func (r *run) operate(i int, o Op, h *hold) {
	switch o {
	case Release:
		r.release(h)
	case Progress:
		r.use(h.claims[0].name, "Progress")
		for _, l := range h.leases() {
			l.Progress()
		}
	case Downgrade:
		if h.multi == nil {
			r.downgrade(h)
		}
	case Publish:
		r.publish(h, fmt.Sprintf("published by step %d", i))
	}
}

// acquisition is a call that has not returned.
type acquisition struct {
	step      Step
	note      string
	machine   *machine
	client    int
	claims    []claim
	within    *hold
	cancel    context.CancelFunc
	began     int  // moment
	canEnd    bool // by Cancel
	old       bool // its grant is older than the call: it was taken again
	forgotten bool // its store has lost all entries since it began
	features  []feature
}

// acquire starts to.
func (r *run) acquire(i int, s Step, m *machine) {
	if s.Do.ofSeveral() {
		s.Opts.Deadlock = false // it is refused
		s.Opts.Reentrant = s.Opts.Reentrant && s.Do != Pool
	}
	a := &acquisition{step: s, note: fmt.Sprintf("step %d", i), machine: m, client: s.Client}
	ctx := r.ctx
	if s.Opts.Within {
		if a.within = r.heldLease(s.Lease, func(h *hold) bool { return h.machine == m }); a.within != nil {
			ctx = a.within.context()
			if s.Opts.Bind {
				ctx = a.within.bind(r.ctx)
			}
		}
	}
	if s.Time > 0 {
		ctx, a.cancel = context.WithTimeout(ctx, s.Time)
	} else {
		ctx, a.cancel = context.WithCancel(ctx)
	}
	a.features = a.of()
	call := r.call(a, i)
	r.mu.Lock()
	r.moment++
	a.began = r.moment
	r.pending = append(r.pending, a)
	r.useLocked(s.Name, a.features...)
	r.mu.Unlock()
	r.jobs.Go(func() {
		defer a.cancel()
		if h, err := call(ctx); h != nil || err != nil {
			r.returned(a, h, err)
		}
	})
}

// of lists the features of an acquisition.
func (a *acquisition) of() []feature {
	fs := []feature{feature(a.step.Do)}
	o := a.step.Opts
	for f, is := range map[feature]bool{
		"Within": a.within != nil, "Reentrant": o.Reentrant && a.within != nil, "MinHold": o.MinHold > 0, "MaxHold": o.MaxHold > 0,
		"Stall": o.Stall > 0, "Bounded": a.step.Time > 0, "Ask": o.Ask, "Revocable": o.Revocable, "Deadlock": o.Deadlock,
		"Do": o.Do && a.step.Do.hasScope(), "Bind": o.Bind && a.within != nil,
	} {
		if is {
			fs = append(fs, f)
		}
	}
	return fs
}

// options are those of the library.
func (r *run) options(a *acquisition) []hasp.LockOption {
	o := a.step.Opts
	opts := []hasp.LockOption{hasp.Note(a.note)}
	add := func(is bool, opt func() hasp.LockOption) {
		if is {
			opts = append(opts, opt())
		}
	}
	add(o.Reentrant, hasp.Reentrant)
	add(o.MinHold > 0, func() hasp.LockOption { return hasp.MinHold(o.MinHold) })
	add(o.MaxHold > 0, func() hasp.LockOption { return hasp.MaxHold(o.MaxHold) })
	add(o.Stall > 0, func() hasp.LockOption { return hasp.StallAfter(o.Stall) })
	add(o.Ask, func() hasp.LockOption { return hasp.AskHolder("a program asks") })
	add(o.Revocable, func() hasp.LockOption { return hasp.Revocable(0, func(hasp.Owner) {}) })
	add(o.Deadlock, func() hasp.LockOption { return hasp.FailOnDeadlock(r.base / 10) })
	return opts
}

// call makes the call of an acquisition, and returns its claims.
func (r *run) call(a *acquisition, i int) func(context.Context) (*hold, error) {
	s, c, name, opts := a.step, a.machine.client, r.name(a.step.Name), r.options(a)
	capacity := r.capacity(s.Name)
	units := capacity
	if s.Opts.Do && s.Do.hasScope() {
		return r.scoped(a, i)
	}
	one := func(lock func(context.Context) (*hasp.Lease, error)) func(context.Context) (*hold, error) {
		a.claims = []claim{{a.machine.Store, s.Name, units, capacity}}
		return func(ctx context.Context) (*hold, error) {
			l, err := lock(ctx)
			return &hold{lease: l}, err
		}
	}
	switch s.Do {
	case Lock:
		return one(c.Mutex(name, opts...).Lock)
	case TryLock:
		return one(c.RWMutex(name, opts...).TryLock)
	case RLock:
		units = 1
		return one(c.RWMutex(name, opts...).RLock)
	case TryRLock:
		units = 1
		return one(c.RWMutex(name, opts...).TryRLock)
	case Acquire, TryAcquire:
		units = (s.Units-1)%capacity + 1
		sem := c.Semaphore(name, capacity, opts...)
		if s.Do == Acquire {
			return one(func(ctx context.Context) (*hasp.Lease, error) { return sem.Acquire(ctx, units) })
		}
		return one(func(ctx context.Context) (*hasp.Lease, error) { return sem.TryAcquire(ctx, units) })
	case Campaign:
		value := fmt.Sprintf("campaign of step %d", i)
		one(nil)
		return func(ctx context.Context) (*hold, error) {
			t, err := c.Election(name, opts...).Campaign(ctx, []byte(value))
			if err != nil {
				return &hold{}, err
			}
			return &hold{lease: t.Lease, term: t, value: value}, nil
		}
	}
	return r.callSeveral(a)
}

// callSeveral is call for the operations that name several locks.
func (r *run) callSeveral(a *acquisition) func(context.Context) (*hold, error) {
	if a.step.Do == Pool {
		p := r.pool(a)
		return func(ctx context.Context) (*hold, error) {
			slot, err := p.Lock(ctx)
			if err != nil {
				return &hold{}, err
			}
			return &hold{lease: slot.Lease}, nil
		}
	}
	locks := r.several(a)
	if a.step.Do == LockAny {
		return func(ctx context.Context) (*hold, error) {
			l, err := hasp.LockAny(ctx, locks...)
			return &hold{lease: l}, err
		}
	}
	return func(ctx context.Context) (*hold, error) {
		m, err := hasp.LockAll(ctx, locks...)
		return &hold{multi: m}, err
	}
}

// ofSeveral reports the operations that claim several locks and take one.
func (o Op) ofSeveral() bool { return o == LockAny || o == Pool }

// pool is the one that has the program's names as its slots.
func (r *run) pool(a *acquisition) *hasp.Pool {
	for name := range r.p.Names {
		a.claims = append(a.claims, claim{a.machine.Store, name, driver.Whole, driver.Whole})
	}
	return a.machine.client.Pool(strings.TrimSuffix(r.prefix, "/"), len(r.p.Names), r.options(a)...)
}

// took narrows the claims to the lock that was taken.
func (a *acquisition) took(l *hasp.Lease) {
	a.claims = slices.DeleteFunc(slices.Clone(a.claims), func(c claim) bool {
		return !strings.HasSuffix(l.Name(), "/"+strconv.Itoa(c.name))
	})
}

// several are the step's name and the next one.
func (r *run) several(a *acquisition) (locks []hasp.Locker) {
	m := a.machine
	for _, name := range []int{a.step.Name, a.step.Name + 1} {
		name %= len(r.p.Names)
		cl := claim{m.Store, name, r.capacity(name), r.capacity(name)}
		if slices.Contains(a.claims, cl) && r.p.Names[name].Permits > 0 {
			continue
		}
		if !slices.Contains(a.claims, cl) {
			a.claims = append(a.claims, cl)
		}
		if r.p.Names[name].Permits > 0 {
			locks = append(locks, m.client.Semaphore(r.name(name), cl.capacity, r.options(a)...).Locker(cl.units))
		} else {
			locks = append(locks, m.client.Mutex(r.name(name), r.options(a)...))
		}
	}
	return locks
}

// abort ends the context of an acquisition under way.
func (r *run) abort(s Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) == 0 {
		return
	}
	a := r.pending[s.Lease%len(r.pending)]
	a.canEnd = true
	a.cancel()
	r.useLocked(a.step.Name, "Cancel")
}

// evict removes an entry of the name from the first store, as an operator does.
func (r *run) evict(s Step) {
	c := r.operators[0]
	q, err := c.Inspect(r.ctx, r.name(s.Name))
	entries := append(q.Holders, q.Waiters...)
	if err != nil || len(entries) == 0 {
		return
	}
	entry := entries[s.Lease%len(entries)]
	id := entry.ID
	r.mu.Lock()
	r.evicted[id] = true // from before: the next may hold while the old one still believes
	r.evictGrantLocked(s.Name, entry.Token)
	// A connection may be known as the holder before it has given its name, and the eviction ends
	// the connection: the entry that has it by then is lost.
	r.loseLocked(func(a *acquisition) bool {
		return slices.ContainsFunc(a.claims, func(c claim) bool { return c.store == 0 && c.name == s.Name })
	})
	r.useLocked(s.Name, "Evict")
	r.mu.Unlock()
	r.jobs.Go(func() {
		err := c.Evict(r.ctx, r.name(s.Name), id, "a program wants it")
		if err != nil && !errors.Is(err, hasp.ErrNotFound) && r.ctx.Err() == nil && r.Disturb == nil {
			r.fail("evict", "evict: %v", err)
		}
	})
}

// evictGrantLocked marks an entry by its token: a driver may have moved it, and its client knows it
// by the id of before.
func (r *run) evictGrantLocked(name int, token uint64) {
	if token == 0 {
		return
	}
	r.evicted[grantKey(name, token)] = true
	for _, h := range r.holds {
		r.inheritEvictionLocked(h)
	}
}

// inheritEvictionLocked is for a hold whose entry was evicted under another id, now or before its
// client knew of the grant.
func (r *run) inheritEvictionLocked(h *hold) {
	for i, c := range h.claims {
		if c.store == 0 && r.evicted[grantKey(c.name, h.tokens[i])] {
			r.evicted[h.ids[i]] = true
		}
	}
}

// grantKey is not the id of an entry: those have no space.
func grantKey(name int, token uint64) string { return fmt.Sprintf("%d %d", name, token) }

// close closes a client, unless it is the last one.
func (r *run) close(m *machine) {
	r.mu.Lock()
	left := 0
	for _, o := range r.machines {
		if !o.closed {
			left++
		}
	}
	if m.closed || left < 2 {
		r.mu.Unlock()
		return
	}
	m.closed = true
	r.useLocked(-1, "Close")
	r.mu.Unlock()
	r.jobs.Go(func() {
		if err := m.client.Close(); err != nil {
			r.fail("close", "close of a client: %v", err)
		}
	})
}
