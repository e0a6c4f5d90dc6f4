package memstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/hasplock/hasp/driver"
)

// Adopt puts this ticket's entry where the other one was, which then is gone for its owner.
func (t *ticket) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	s, st := t.session, t.session.store
	if err := st.arrive(ctx); err != nil {
		return driver.Verdict{}, err
	}
	old, err := t.adopt(id, seq)
	if err != nil {
		return driver.Verdict{}, err
	}
	if old != nil {
		old.of.opts.Gone(id, fmt.Errorf("%w: handed on to session %s", driver.ErrGone, s.id))
	}
	return driver.Verdict{Held: true, Token: seq}, nil
}

// adopt returns the entry that was taken over, nil if that was done before.
func (t *ticket) adopt(id string, seq uint64) (*entry, error) {
	s, st := t.session, t.session.store
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case !s.live() || t.left || t.entry.gone || t.entered && !t.entry.held:
		return nil, driver.ErrGone
	case t.entered:
		return nil, nil
	}
	r := t.request
	if err := st.refusal(r.Name); err != nil {
		return nil, err
	}
	q := st.queues[r.Name]
	i := 0
	if q != nil {
		i = q.find(seq)
	}
	if q == nil || i == len(q.entries) {
		return nil, driver.ErrGone
	}
	old := q.entries[i]
	if old.ID != id || old.Seq != seq || !old.held || old.Units != r.Units || old.Capacity != r.Capacity {
		return nil, driver.ErrGone
	}
	t.entry = entry{Entry: old.Entry, held: true, of: s}
	t.entry.ID, t.entry.Owner, t.entry.Since, t.entry.Session = r.ID, r.Owner, r.Since, s.id
	t.entry.Value = slices.Clone(old.Value)
	t.entered = true
	old.gone = true
	delete(old.of.entries, old.ID)
	q.entries[i] = &t.entry
	s.entries[r.ID] = &t.entry
	st.changed(r.Name)
	return old, nil
}

// Evict removes an entry on an operator's behalf, tells its session, and keeps the note, if there
// is one, for as long as the store lives.
func (b *backend) Evict(ctx context.Context, name, id, note string) error {
	st := b.store
	if err := st.arrive(ctx); err != nil {
		return err
	}
	st.mu.Lock()
	var found *entry
	if q := st.queues[name]; q != nil {
		if i := slices.IndexFunc(q.entries, func(e *entry) bool { return e.ID == id }); i >= 0 {
			found = q.entries[i]
			st.remove(found)
			if note != "" {
				st.evictions[name] = note
			}
		}
	}
	st.mu.Unlock()
	if found == nil {
		return driver.ErrGone
	}
	found.evicted()
	return nil
}

func (b *backend) LastEviction(ctx context.Context, name string) (string, error) {
	st := b.store
	if err := st.arrive(ctx); err != nil {
		return "", err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.evictions[name], nil
}
