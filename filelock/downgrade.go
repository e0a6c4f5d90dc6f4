//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Downgrade makes the held entry smaller: one write of its record, which is the commit.
// All entries that its removal would concern are signalled, which are all that a smaller entry
// concerns and perhaps a few more, which look and go on waiting. Should we die before the
// signals, they are told of our death.
func (t *ticket) Downgrade(ctx context.Context, units int64) error {
	who, err := t.shrink(ctx, units)
	if err != nil {
		return err
	}
	for _, p := range who {
		t.session.store.notifier.notify(p)
	}
	if len(who) > 0 {
		yieldCPU()
	}
	return nil
}

func (t *ticket) shrink(ctx context.Context, units int64) (who []wakeTarget, err error) {
	q := t.file
	if err := q.lock(ctx); err != nil {
		return nil, refuse(err)
	}
	defer q.unlock()
	queue := q.queue(t.key)
	i := indexOf(queue, t.seq, t.session.id)
	switch {
	case i < 0 || !t.held.Load(): // what waits would hold beside those ahead of it, if it became smaller
		return nil, driver.ErrGone
	case units < 1:
		return nil, fmt.Errorf("%w: an entry cannot have %d units", driver.ErrInvalid, units)
	case units >= int64(queue[i].units):
		return nil, nil // it never grows
	}
	who = affectedBy(queue, i)
	smaller := *queue[i]
	smaller.units = uint32(units)
	if err := q.put(smaller); err != nil {
		return nil, refuse(err)
	}
	t.request.Units = units
	return who, nil
}

// Publish replaces the value of the entry.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	if len(value) > maxValue {
		return fmt.Errorf("%w: a value may have %d bytes", driver.ErrInvalid, maxValue)
	}
	if err := t.file.lock(ctx); err != nil {
		return refuse(err)
	}
	defer t.file.unlock()
	queue := t.file.queue(t.key)
	i := indexOf(queue, t.seq, t.session.id)
	if i < 0 || !t.held.Load() {
		return driver.ErrGone
	}
	return refuse(t.file.setValue(queue[i], value))
}
