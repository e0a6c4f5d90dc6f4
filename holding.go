package hasp

import (
	"context"
	"slices"
	"sync"

	"github.com/hasplock/hasp/driver"
)

// leaseKey finds the holder that a context was made from: a *Lease, or the *takenLeases of a
// LockAll.
type leaseKey struct{}

// holder has the leases that a goroutine holds, as its context tells.
type holder interface {
	// find returns the lease, if there is one, that waiting for r would wait for.
	find(c *Client, r *Request) *Lease

	// each calls yield for the leases that are held, until it returns false, which each returns.
	each(yield func(*Lease) bool) bool

	// outer is the context that the first of them was asked for with.
	outer() context.Context
}

func (l *Lease) find(c *Client, r *Request) *Lease {
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

func (t *takenLeases) find(c *Client, r *Request) *Lease {
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

// holding returns the lease, if any, that ctx was made from and that waiting for r would
// wait for. Semaphores are left alone: to take a second permit is no mistake in itself.
func holding(ctx context.Context, c *Client, r *Request) *Lease {
	if r.capacity != driver.Whole {
		return nil
	}
	for {
		h, ok := ctx.Value(leaseKey{}).(holder)
		if !ok {
			return nil
		}
		if l := h.find(c, r); l != nil {
			return l
		}
		ctx = h.outer()
	}
}

// whileHolding adds the ids of what the owner holds: the leases that ctx was made from, the
// innermost first, and those it names itself; as many as fit. It costs nothing to those who
// hold nothing.
func whileHolding(ctx context.Context, owner string, named []string) string {
	h, ok := ctx.Value(leaseKey{}).(holder)
	if !ok && len(named) == 0 {
		return owner
	}
	room := maxOwner - len(owner) - len(`,"holds":[]`)
	var ids []string
	add := func(id string) bool {
		if room -= len(id) + len(`"",`); room >= 0 { // ids are plain ASCII
			ids = append(ids, id)
		}
		return room >= 0
	}
	more := !slices.ContainsFunc(named, func(id string) bool { return !add(id) })
	for ; ok && more; h, ok = h.outer().Value(leaseKey{}).(holder) {
		more = h.each(func(l *Lease) bool { return slices.Contains(ids, l.ID()) || add(l.ID()) })
	}
	o := decodeOwner(owner)
	o.Holds = ids
	if longer := o.encode(); len(longer) <= maxOwner {
		return longer
	}
	return owner // a name that the user gave is no id of ours
}
