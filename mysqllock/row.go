package mysqllock

import (
	"context"
	"database/sql"

	"github.com/hasplock/hasp/driver"
)

// rows is the scheme of a row that is locked in an open transaction. The token is drawn on
// another connection: drawn in the same transaction it would be undone with it when the
// connection breaks, and given out a second time.
//
// The transaction may have ended while the token was drawn: its connection was killed, say. The row's
// next holder can then draw before us, and our token, of a lock that is lost already, would be the
// greater one. So the connection is asked once more: if it answers, the row was ours when the token
// was drawn, and every later holder draws a greater one.
type rows struct{ *store }

func (*rows) check(string) error        { return nil }
func (*rows) fit(context.Context) error { return nil }

func (s *rows) acquire(ctx context.Context, c *sql.Conn, r driver.Request, seconds int) (p grant, err error) {
	if err := row(ctx, c, s.named("CALL {p}lock_row_1(?, ?)", r.Name, seconds), &p.got, &p.connection); err != nil || !p.got {
		return p, err
	}
	err = row(ctx, s.work, s.named("CALL {p}draw_1(?, ?, ?, ?, ?)", r.Name, r.ID, p.connection, r.Since.UnixMicro(), r.Owner), &p.token)
	if err == nil {
		err = row(ctx, c, "SELECT 1", new(int))
	}
	return p, err
}

// waits is of the statement inside of lock_row, which servers show in different ways: the name is not always in it. Who has the
// number of ours and waits for a row of these tables is at worst another client's waiter, which asks again.
func (s *rows) waits(string) string { return s.named("FROM {p}rows WHERE name = ") }

// release ends the transaction, in which nothing was changed. It is there for as long as its
// connection is: the server ends it in no other way.
func (*rows) release(ctx context.Context, c *sql.Conn, _ string) (bool, error) {
	_, err := run(ctx, c, "ROLLBACK")
	return err == nil, err
}

// looksAt locks the row for reading, so that two who look at once do not take each other for the holder. The two servers
// have different words for that, each in a comment that the other skips.
const looksAt = "SELECT 1 FROM {p}rows WHERE name = ? /*M! LOCK IN SHARE MODE NOWAIT */ /*!80000 FOR SHARE NOWAIT */"

// used tries to lock the row itself, for as long as the statement takes, without waiting.
func (s *rows) used(ctx context.Context, name string) (bool, uint64, error) {
	var one int
	text := s.named(looksAt, name)
	err := once(ctx, s.work, text, func(r *sql.Rows) error { return r.Scan(&one) }) // not again: busy is the answer
	switch {
	case number(err) == errLockWait, number(err) == errNoWait:
		return true, 0, nil
	}
	return false, 0, err
}
