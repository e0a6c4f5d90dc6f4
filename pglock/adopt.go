package pglock

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Adopt moves another session's entry to ours, in one statement. If its answer is lost, the
// next one finds the entry under our id. Our renewals count it from the moment it is known;
// the old owner's miss it.
func (t *ticket) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	s, r := t.session, t.request
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if err := s.register(t); err != nil {
		return driver.Verdict{}, err
	}
	s.mu.Lock()
	t.sent, t.where = true, s.where
	s.mu.Unlock()
	var state string
	err := s.table.ask(ctx, `SELECT hasp_adopt(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::bigint, $4::pg_catalog.text, $5::pg_catalog.text,
		$6::bigint, $7::bigint, $8::pg_catalog.text, $9::bigint)`,
		[]any{r.Name, id, int64(seq), r.ID, s.id, r.Units, r.Capacity, r.Owner, r.Since.UnixMicro()}, &state)
	switch {
	case noSchema(err), err == nil && state == "dead":
		return driver.Verdict{}, s.dead()
	case err != nil:
		return driver.Verdict{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.left || s.closed:
		return driver.Verdict{}, errSessionClosed // Leave and Close removed what this took
	case state != "held":
		s.goneLocked(t)
		return driver.Verdict{}, fmt.Errorf("%w: no such entry to take over", driver.ErrGone)
	}
	t.confirmed, t.held, t.seq = true, true, int64(seq)
	return t.verdictLocked(answer{}), nil
}
