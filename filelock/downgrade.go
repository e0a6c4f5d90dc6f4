//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Downgrade makes the held entry smaller: one write of its record, which is the commit.
// Whoever its departure would concern is rung, which is everybody that a smaller entry
// concerns and perhaps a few more, who look and go on waiting. Should we die before the
// ringing, they are told of our death.
func (t *ticket) Downgrade(ctx context.Context, units int64) error {
	who, err := t.shrink(ctx, units)
	if err != nil {
		return err
	}
	for _, p := range who {
		t.session.store.post.ring(p)
	}
	if len(who) > 0 {
		giveWay()
	}
	return nil
}

func (t *ticket) shrink(ctx context.Context, units int64) (who []party, err error) {
	q := t.file
	if err := q.lock(ctx); err != nil {
		return nil, refuse(err)
	}
	defer q.unlock()
	rec, here, err := t.present()
	switch {
	case err != nil:
		return nil, asGone(err)
	case !here:
		return nil, driver.ErrGone
	case units < 1:
		return nil, fmt.Errorf("%w: an entry cannot have %d units", driver.ErrInvalid, units)
	case units >= int64(rec.units):
		return nil, nil // it never grows
	}
	tail, _, err := q.find(t.key)
	if err != nil {
		return nil, refuse(err)
	}
	if who, err = q.disturbed(t.slot, rec, tail); err != nil {
		return nil, refuse(err)
	}
	if err := q.relink(t.slot, func(r *record) { r.units = uint32(units) }); err != nil {
		return nil, refuse(err)
	}
	if err := q.flush(); err != nil {
		return nil, refuse(err)
	}
	t.request.Units = units
	return who, nil
}
