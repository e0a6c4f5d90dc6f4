package pglock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

// modes are how hasp_enter calls them. They say what may be there already: an ID that was never
// sent needs no looking for.
var modes = map[pushqueue.Mode]string{pushqueue.First: "first", pushqueue.Again: "again", pushqueue.Ask: "ask"}

// answer is that of hasp_enter.
type answer struct {
	state             string
	seq, retry, ahead int64 // ahead: how many wait in front, counted to four
	holder            string
}

var states = map[string]pushqueue.State{
	"row":  pushqueue.Held,
	"held": pushqueue.Held, "wait": pushqueue.Waits, "busy": pushqueue.Busy, "gone": pushqueue.Gone, "dead": pushqueue.Dead,
}

// leastRetry keeps waiters that ask because a holder seems to have expired from asking in a loop
// while its row is locked.
const leastRetry = 20 * time.Millisecond

// toAnswer also says when to ask.
//
// An expiry is not notified, so the first four waiters ask for it: one would do, more cover waiters
// that die together. The others ask once in a TTL, in case all of these died; and so do the four if
// those ahead have a longer TTL: a notification may be lost on the connection of another session,
// whose renewals find that out in the course of that one's TTL.
//
// Where no notification arrives, the first waiter asks every Poll and the others less often: a
// hand-over then costs as many requests as the first few send in that time, for any length of the
// queue.
func (s *session) toAnswer(a answer) pushqueue.Answer {
	m := pushqueue.Answer{State: states[a.state], Seq: uint64(a.seq), Retry: s.Options.TTL, Holder: a.holder}
	if a.ahead < 4 {
		m.Place = int(a.ahead) + 1
		m.Retry = min(max(time.Duration(a.retry)*time.Microsecond, leastRetry)+time.Duration(1+a.ahead)*time.Millisecond, m.Retry)
	}
	if !s.table.links.listens() {
		m.Poll = time.Duration(1+a.ahead) * s.table.opts.Poll
	}
	return m
}

// mostInRow is how many bytes of a request go into a name's row. With more the next version of the
// row might not fit on its page.
const mostInRow = 1000

// enterSQL tries the name's row first. If the row says "queued", the update changes nothing, and
// hasp_enter goes on. The names of operators are written out because a pool of the user's may have
// any search_path.
//
// Both this and leaveSQL take the name's turn (hasp_first) before the row's lock, as all do that
// wait for the row. An update that waited for the row, and then finds it changed, keeps the row's
// lock. It would wait for the turn of a transaction that waits for the row: a deadlock.
//
// A level above READ COMMITTED, and commits that do not wait for the disk, are the function's
// business: it complains about the first and corrects the second.
const enterSQL = `WITH fast AS (
		UPDATE hasp_names n SET seq = greatest(n.seq OPERATOR(pg_catalog.+) 1::bigint, t.now), used = greatest(n.used, t.now OPERATOR(pg_catalog./) 3600000000::bigint),
			h_id = $4::pg_catalog.text, h_seq = greatest(n.seq OPERATOR(pg_catalog.+) 1::bigint, t.now), h_until = t.now OPERATOR(pg_catalog.+) $11::bigint,
			h_session = $5::pg_catalog.text, h_units = $6::bigint, h_capacity = $7::bigint, h_owner = $8::pg_catalog.text, h_since = $9::bigint, h_value = $10::pg_catalog.bytea
		FROM (SELECT hasp_now() AS now FROM hasp_sessions s WHERE s.id OPERATOR(pg_catalog.=) $5::pg_catalog.text AND s.expires OPERATOR(pg_catalog.>) hasp_now() AND hasp_first($3::pg_catalog.text)) t
		WHERE n.name OPERATOR(pg_catalog.=) $3::pg_catalog.text AND n.h_id OPERATOR(pg_catalog.=) ''::pg_catalog.text AND NOT n.queued AND n.watched OPERATOR(pg_catalog.<) t.now
			AND pg_catalog.current_setting('transaction_isolation'::pg_catalog.text) OPERATOR(pg_catalog.=) 'read committed'::pg_catalog.text
			AND pg_catalog.current_setting('synchronous_commit'::pg_catalog.text) OPERATOR(pg_catalog.<>) 'off'::pg_catalog.text
		RETURNING n.h_seq)
	SELECT 'row'::pg_catalog.text, f.h_seq, 0::bigint, 0::bigint, ''::pg_catalog.text, $4::pg_catalog.text FROM fast f
	UNION ALL ` + enterSlowly + ` WHERE NOT EXISTS (SELECT FROM fast)`

const enterSlowly = `SELECT e.*, $4::pg_catalog.text FROM hasp_enter($1::pg_catalog.text, $2::boolean, hasp_turn($3::pg_catalog.text, 16),
		$4::pg_catalog.text, $5::pg_catalog.text, $6::bigint, $7::bigint, $8::pg_catalog.text, $9::bigint, $10::pg_catalog.bytea, $11::bigint) e`

// Enter makes the entry, or asks for it.
func (s *session) Enter(ctx context.Context, t *ticket, mode pushqueue.Mode) (pushqueue.Answer, error) {
	s.Lock()
	renewals := s.renewals
	s.Unlock()
	r := t.Request
	stmt, ttl := enterSlowly, int64(0)
	if mode == pushqueue.First && len(r.Owner)+len(r.Value) <= mostInRow {
		stmt, ttl = enterSQL, s.Options.TTL.Microseconds()
	}
	var a answer
	sent := bootclock.Now()
	err := s.table.ask(ctx, stmt, []any{modes[mode], r.NoWait, r.Name, r.ID, s.id, r.Units, r.Capacity, r.Owner, r.Since.UnixMicro(), present(r.Value), ttl},
		&a.state, &a.seq, &a.retry, &a.ahead, &a.holder, echo(r.ID))
	switch {
	case noSchema(err):
		return pushqueue.Answer{State: pushqueue.Dead}, nil
	case err != nil:
		return pushqueue.Answer{}, err
	case a.state == "other":
		return pushqueue.Answer{}, &driver.MismatchError{Name: r.Name, Want: r.Capacity, Found: a.seq}
	case a.state == "row" && !s.inRow(t, sent, renewals):
		return s.move(ctx, t)
	case a.state == "wait" && s.channel != nil:
		s.channel.waits(s, t)
	}
	return s.toAnswer(a), nil
}

// move has a row holder moved to the entries. If that is refused (the disk is full) the holder is
// there all the same. A refusal would tell the caller that it has nothing, and nothing would be
// released. After an error that leaves it open the core asks again, and releases if that fails as
// well. If we die meanwhile, it ends by its own time.
func (s *session) move(ctx context.Context, t *ticket) (pushqueue.Answer, error) {
	a, err := s.Enter(ctx, t, pushqueue.Ask)
	if errors.Is(err, driver.ErrRefused) {
		err = fmt.Errorf("the lock was taken, and cannot be kept yet: %v", err)
	}
	return a, err
}
