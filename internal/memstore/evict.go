package memstore

import (
	"context"
	"slices"

	"github.com/hasplock/hasp/driver"
)

// Evict removes an entry on an operator's behalf and tells its session.
func (b *backend) Evict(ctx context.Context, name, id string) error {
	return b.EvictFor(ctx, name, id, "")
}

// EvictFor evicts, and keeps the note, if there is one, for as long as the store lives.
func (b *backend) EvictFor(ctx context.Context, name, id, note string) error {
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
