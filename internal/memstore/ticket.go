package memstore

import (
	"context"
	"slices"

	"github.com/hasplock/hasp/driver"
)

type ticket struct {
	session *session
	request driver.Request

	// Guarded by store.mu.
	left    bool // a late Enqueue must not make an orphan
	entered bool
	entry   entry
}

func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	s, st := t.session, t.session.store
	if err := st.arrive(ctx); err != nil {
		return driver.Verdict{}, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if !s.live() || t.left || t.entry.gone {
		return driver.Verdict{}, driver.ErrGone
	}
	if !t.entered {
		if err := st.refusal(t.request.Name); err != nil {
			return driver.Verdict{}, err
		}
		entered, err := st.enter(&t.entry, t.request, s)
		if err != nil {
			return driver.Verdict{}, err
		}
		if !entered {
			return driver.Verdict{Holder: st.queues[t.request.Name].entries[0].Owner}, nil
		}
		t.entered = true
	}
	return t.verdict(), nil
}

// verdict reads the entry; the caller has store.mu.
func (t *ticket) verdict() driver.Verdict {
	if t.entry.held {
		return driver.Verdict{Held: true, Token: t.entry.Seq}
	}
	q := t.session.store.queues[t.entry.Name]
	return driver.Verdict{Holder: q.entries[0].Owner, Place: q.find(t.entry.Seq) - q.holding + 1}
}

func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	st := t.session.store
	st.mu.Lock()
	notice := t.entry.notice
	st.mu.Unlock()
	select {
	case <-notice: // nil if it never had to wait: then there is nothing to wait for
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
	// A store that cannot be reached tells nothing either. The notice stays, for the next call.
	if err := st.arrive(ctx); err != nil {
		return driver.Verdict{}, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if t.entry.gone {
		return driver.Verdict{}, driver.ErrGone
	}
	return t.verdict(), nil
}

func (t *ticket) Leave(ctx context.Context) error {
	st := t.session.store
	if err := st.arrive(ctx); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	t.left = true
	if !t.entered || t.entry.gone {
		return driver.ErrGone
	}
	st.remove(&t.entry)
	return nil
}

// Publish replaces the value of the entry.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	return t.change(ctx, func(st *Store) {
		t.entry.Value = slices.Clone(value)
		st.changed(t.entry.Name)
	})
}

// Downgrade makes the entry smaller and lets those hold who now fit beside it.
func (t *ticket) Downgrade(ctx context.Context, units int64) error {
	return t.change(ctx, func(st *Store) {
		if units >= t.entry.Units {
			return // it never grows
		}
		q := st.queues[t.entry.Name]
		q.used -= t.entry.Units - units
		t.entry.Units = units
		q.admit()
		st.changed(t.entry.Name)
	})
}

// change does something to the entry if it is there and holds.
func (t *ticket) change(ctx context.Context, do func(*Store)) error {
	st := t.session.store
	if err := st.arrive(ctx); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if !t.entered || t.entry.gone || !t.entry.held {
		return driver.ErrGone
	}
	do(st)
	return nil
}
