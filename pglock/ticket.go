package pglock

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

var _ pushqueue.Store[extra] = (*session)(nil)

// errOtherServer is for an entry that another server than the one that had it does not find.
var errOtherServer = fmt.Errorf("another server answers than the one that had the entry (a replica was promoted, a backup restored): %w", driver.ErrForgotten)

// Leave removes the entry. That there is none usually means that a Leave before this one was
// applied, and its answer lost. But a replica that is promoted without having every commit has
// forgotten the entry, or has never had it, and may have granted its lock to another before the
// release: whether it was held to the end is unknown. The server and its timeline distinguish the
// two cases: each promotion begins another timeline.
func (s *session) Leave(ctx context.Context, t *ticket, _ bool) error {
	stmt := leaveSlowly
	if s.mayBeInRow(t) {
		stmt = s.table.leaveSQL
	}
	there, where, err := s.table.leave(ctx, stmt, t.Request.Name, s.id, t.Request.ID)
	switch {
	case noSchema(err):
		return driver.ErrGone
	case err != nil || there:
		return err
	case t.ElsewhereThan(where):
		return errOtherServer
	}
	return driver.ErrGone
}

const leaveSlowly = `SELECT l.there, CASE WHEN l.there THEN '' ELSE hasp_where() END, $3::pg_catalog.text
		FROM hasp_leave(hasp_turn($1::pg_catalog.text, 0), $2::pg_catalog.text, $3::pg_catalog.text, $4::boolean) l(there)`

// leaveSQL tries the row first, and else goes on as any Leave. Its commit does not wait for the
// disk, unless it is to (hasp_lazily).
func leaveSQL(durable bool) string {
	lazily := "pg_catalog.set_config('synchronous_commit'::pg_catalog.text, 'off'::pg_catalog.text, true)"
	if durable {
		lazily = "hasp_lazily(true)"
	}
	return `WITH fast AS (
		UPDATE hasp_names n SET h_id = ''::pg_catalog.text, h_session = ''::pg_catalog.text, h_owner = ''::pg_catalog.text, h_value = ''::pg_catalog.bytea
		WHERE n.name OPERATOR(pg_catalog.=) $1::pg_catalog.text AND n.h_id OPERATOR(pg_catalog.=) $3::pg_catalog.text
			AND n.h_session OPERATOR(pg_catalog.=) $2::pg_catalog.text AND n.watched OPERATOR(pg_catalog.<) hasp_now() AND hasp_first($1::pg_catalog.text)
		RETURNING ` + lazily + `)
	SELECT true, ''::pg_catalog.text, $3::pg_catalog.text FROM fast
	UNION ALL ` + leaveSlowly + ` WHERE NOT EXISTS (SELECT FROM fast)`
}

// leave also answers where it asked, if the entry is not there. session is "" if an operator
// evicts: that others may have the lock must not be forgotten once the operator has been told.
func (t *tables) leave(ctx context.Context, stmt, name, session, id string) (there bool, where string, err error) {
	err = t.ask(ctx, stmt, []any{name, session, id, t.opts.DurableRelease || session == ""}, &there, &where, echo(id))
	return there, where, err
}

// Publish replaces the value of the held entry.
func (s *session) Publish(ctx context.Context, t *ticket, value []byte, number uint64) (there bool, err error) {
	err = s.table.ask(ctx, "SELECT hasp_publish(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.bytea, $5::bigint)",
		[]any{t.Request.Name, s.id, t.Request.ID, present(value), int64(number)}, &there)
	return there, err
}

// present is the value as a column wants it that cannot be NULL.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

// Downgrade makes the held entry smaller: one statement, and so applied as a whole or not at
// all if we die under it. An entry that was renewed too late and that is not removed yet
// counts as there, as it does for Leave; whether that is a lease is for its owner's clock.
func (s *session) Downgrade(ctx context.Context, t *ticket, units int64) (there bool, err error) {
	err = s.table.ask(ctx, "SELECT hasp_downgrade(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::pg_catalog.text, $4::bigint)",
		[]any{t.Request.Name, s.id, t.Request.ID, units}, &there)
	if noSchema(err) {
		return false, nil
	}
	return there, err
}

// Adopt moves another session's entry to ours, in one statement.
func (s *session) Adopt(ctx context.Context, t *ticket, id string, seq uint64) (pushqueue.Answer, error) {
	r := t.Request
	var state string
	err := s.table.ask(ctx, `SELECT hasp_adopt(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::bigint, $4::pg_catalog.text, $5::pg_catalog.text,
		$6::bigint, $7::bigint, $8::pg_catalog.text, $9::bigint)`,
		[]any{r.Name, id, int64(seq), r.ID, s.id, r.Units, r.Capacity, r.Owner, r.Since.UnixMicro()}, &state)
	switch {
	case noSchema(err), err == nil && state == "dead":
		return pushqueue.Answer{State: pushqueue.Dead}, nil
	case err == nil && state != "held":
		return pushqueue.Answer{State: pushqueue.Gone}, nil
	}
	return pushqueue.Answer{State: pushqueue.Held, Seq: seq}, err
}
