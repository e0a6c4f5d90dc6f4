package hasp

import (
	"context"
	"slices"
	"sync"

	"github.com/hasplock/hasp/driver"
)

// leaseKey finds the holder that a context was made from: a *Lease, a *MultiLease, what Bind has
// made of one of these, or the *takenLeases of a LockAll that still waits for the rest.
type leaseKey struct{}

// LeaseFrom has no lease under DoAll, whose function gets all of them, with a token by name: the
// token of another lock than the resource's would be accepted or refused at random. Rejected: the
// last of several; a lease as one more parameter of Do's function (it does not reach the functions
// that those call).

// LeaseFrom returns the lease that ctx was made from: by [Lease.Context] or [Lease.Bind], or by a
// Do or [Election.Run], which give their functions such a context. It is for what needs more than
// the context: the token for the resource, Held, Deadline, Progress.
//
// If locks were taken one inside the other, it is the innermost; if that is several locks that
// [LockAll] or [DoAll] has taken, there is no one lease. The lease may be lost or released by now.
func LeaseFrom(ctx context.Context) (*Lease, bool) {
	switch h := holderOf(ctx).(type) {
	case *Lease:
		return h, true
	case *boundLeases:
		l, ok := h.of.(*Lease)
		return l, ok
	}
	return nil, false
}

// holderOf returns the innermost holder that ctx was made from, nil if there is none.
func holderOf(ctx context.Context) holder {
	if ctx == nil {
		return nil
	}
	h, _ := ctx.Value(leaseKey{}).(holder)
	return h
}

// holder has the leases that a goroutine holds, as its context tells.
type holder interface {
	// find returns the lease, if there is one, that waiting for r would wait for.
	find(c *Client, r *request) *Lease

	// each calls yield for the leases that are held, until it returns false, which each returns.
	each(yield func(*Lease) bool) bool

	// outer is the context with which the first of them was requested.
	outer() context.Context
}

func (l *Lease) find(c *Client, r *request) *Lease {
	if l.entry.session.client == c && l.entry.name == r.name && int64(l.entry.capacity) == r.capacity && l.Held() {
		return l
	}
	return nil
}

func (l *Lease) each(yield func(*Lease) bool) bool { return !l.Held() || yield(l) }

func (l *Lease) outer() context.Context { return l.parent }

// takenLeases are the leases that a LockAll has so far. All of them were asked for with one
// context, that carries this: a context for each, made from the one before, would make taking a
// thousand locks a matter of a million steps.
type takenLeases struct {
	ctx context.Context // LockAll's own

	mu     sync.Mutex // work under the first may look while the next are taken
	list   []*Lease
	byName map[clientName]*Lease
}

type clientName struct {
	client *Client
	name   string
}

func (t *takenLeases) add(l *Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, l)
	t.byName[clientName{l.entry.session.client, l.entry.name}] = l
}

func (t *takenLeases) find(c *Client, r *request) *Lease {
	t.mu.Lock()
	l := t.byName[clientName{c, r.name}]
	t.mu.Unlock()
	if l == nil {
		return nil
	}
	return l.find(c, r)
}

func (t *takenLeases) each(yield func(*Lease) bool) bool {
	t.mu.Lock()
	list := t.list // what is added later is not of this look
	t.mu.Unlock()
	for _, l := range slices.Backward(list) {
		if !l.each(yield) {
			return false
		}
	}
	return true
}

func (t *takenLeases) outer() context.Context { return t.ctx }

func (m *MultiLease) find(c *Client, r *request) *Lease { return m.taken.find(c, r) }

func (m *MultiLease) each(yield func(*Lease) bool) bool { return m.taken.each(yield) }

func (m *MultiLease) outer() context.Context { return m.taken.ctx }

// boundLeases is the holder of a context that Bind made from another. Two contexts can tell then
// what is held: the one that was bound, and the one that the lock was asked for with.
type boundLeases struct {
	of  holder
	ctx context.Context // that was bound

	// held are the leases of the second, each once, if the first does not tell them all the same.
	// They are copied, so that there is one context to go on with: with two, each Bind inside
	// another could double the way.
	held []*Lease
}

func newBoundLeases(of holder, ctx context.Context) *boundLeases {
	b := &boundLeases{of: of, ctx: ctx}
	asked := holderOf(of.outer())
	if asked == holderOf(ctx) {
		return b
	}
	for h := asked; h != nil; h = holderOf(h.outer()) {
		h.each(func(l *Lease) bool {
			if !slices.Contains(b.held, l) {
				b.held = append(b.held, l)
			}
			return true
		})
	}
	return b
}

func (b *boundLeases) find(c *Client, r *request) *Lease {
	if l := b.of.find(c, r); l != nil {
		return l
	}
	for _, l := range b.held {
		if l = l.find(c, r); l != nil {
			return l
		}
	}
	return nil
}

func (b *boundLeases) each(yield func(*Lease) bool) bool {
	return b.of.each(yield) && !slices.ContainsFunc(b.held, func(l *Lease) bool { return !l.each(yield) })
}

func (b *boundLeases) outer() context.Context { return b.ctx }

// holding returns the lease, if any, of the holder that a context was made from and that waiting
// for r would wait for. Semaphores are left alone: to take a second permit is no mistake in itself.
func holding(h holder, c *Client, r *request) *Lease {
	if r.capacity != driver.Whole {
		return nil
	}
	for ; h != nil; h = holderOf(h.outer()) {
		if l := h.find(c, r); l != nil {
			return l
		}
	}
	return nil
}

// whileHolding adds the ids of what the owner holds: the leases of the holder that its context was
// made from, the innermost first, and those it names itself; as many as fit. And it marks one that
// waits for any of several locks. It costs nothing to those who hold nothing.
func whileHolding(h holder, owner string, named []string) string {
	if h == nil && len(named) == 0 {
		return owner
	}
	room := maxOwner - len(owner) - len(anyOf) - len(`,"holds":[]`)
	_, choosing := h.(*choice)
	var ids []string
	add := func(id string) bool {
		if room -= len(id) + len(`"",`); room >= 0 { // ids are plain ASCII
			ids = append(ids, id)
		}
		return room >= 0
	}
	more := !slices.ContainsFunc(named, func(id string) bool { return !add(id) })
	for ; h != nil && more; h = holderOf(h.outer()) {
		more = h.each(func(l *Lease) bool { return slices.Contains(ids, l.ID()) || add(l.ID()) })
	}
	o := decodeOwner(owner)
	o.Holds, o.AnyOf = ids, choosing
	if longer := o.encode(); len(longer) <= maxOwner {
		return longer
	}
	return owner // a name that the user gave is no id of ours
}
