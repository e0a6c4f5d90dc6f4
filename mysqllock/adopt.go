package mysqllock

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// saidNoSession is what adopt says of the session that it is for.
const saidNoSession = 5

// Adopt moves another session's entry to ours, in one call. If its answer is lost, the next
// one finds the entry under our id. Our renewals count it from the moment it is known; the
// old owner's miss it.
func (t *ticket) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	s, r := t.session, t.request
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if err := s.register(t); err != nil {
		return driver.Verdict{}, err
	}
	said, edition := 0, uint64(0)
	text := s.table.named("CALL {p}adopt_3(?, ?, ?, ?, ?, ?, ?, ?, ?)",
		r.Name, id, seq, r.ID, s.id, r.Units, r.Capacity, r.Since.UnixMicro(), r.Owner)
	if err := row(ctx, s.table.work, text, &said, &edition); err != nil {
		return driver.Verdict{}, s.table.gone(err)
	}
	if said == saidNoSession {
		err := fmt.Errorf("%w: the session has expired", driver.ErrGone)
		s.opts.Gone("", err)
		return driver.Verdict{}, err
	}
	s.mu.Lock()
	t.editions = edition
	s.mu.Unlock()
	return t.answered(answer{said: said, seq: seq, held: said == 0})
}
