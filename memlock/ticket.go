package memlock

import (
	"context"
	"slices"

	"github.com/hasplock/hasp/driver"
)

type ticket struct {
	session *session
	request driver.Request
	left    bool   // guarded by store.mu: a late Enqueue must not make an orphan
	entry   *entry // nil before it was entered; guarded by store.mu
}

func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	s, st := t.session, t.session.store
	st.mu.Lock()
	defer st.mu.Unlock()
	if !s.live() || t.left || t.entry != nil && t.entry.gone {
		return driver.Verdict{}, driver.ErrGone
	}
	if t.entry == nil {
		e, err := st.enter(t.request, s.id)
		if err != nil {
			return driver.Verdict{}, err
		}
		if e == nil {
			return driver.Verdict{Holder: st.queues[t.request.Name].entries[0].Owner}, nil
		}
		e.tell = s.opts.Gone
		t.entry = e
		s.entries[e.ID] = e
	}
	return t.verdict(), nil
}

// verdict reads the entry; the caller has store.mu.
func (t *ticket) verdict() driver.Verdict {
	if t.entry.held {
		return driver.Verdict{Held: true, Token: t.entry.Seq}
	}
	return driver.Verdict{Holder: t.session.store.queues[t.entry.Name].entries[0].Owner}
}

func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	st := t.session.store
	st.mu.Lock()
	e := t.entry
	st.mu.Unlock()
	select {
	case <-e.notice:
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if e.gone {
		return driver.Verdict{}, driver.ErrGone
	}
	return t.verdict(), nil
}

func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	st := t.session.store
	st.mu.Lock()
	defer st.mu.Unlock()
	t.left = true
	if t.entry == nil || t.entry.gone {
		return driver.ErrGone
	}
	st.remove(t.entry)
	delete(t.session.entries, t.entry.ID)
	return nil
}

// Publish replaces the value of the entry.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	st := t.session.store
	st.mu.Lock()
	defer st.mu.Unlock()
	if t.entry == nil || t.entry.gone {
		return driver.ErrGone
	}
	t.entry.Value = slices.Clone(value)
	st.changed(t.entry.Name)
	return nil
}
