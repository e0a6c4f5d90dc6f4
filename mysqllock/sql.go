package mysqllock

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// querier is a pool or one connection of it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// literal writes a value into a statement: a string as hexadecimal digits, so that nothing
// in it can mean anything to the server, in any mode and character set.
//
// Placeholders would be the usual way. On a pool of the user's they cost a second round
// trip for each statement (prepare, then execute), unless its DSN has interpolateParams.
func literal(v any) string {
	switch v := v.(type) {
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case string:
		return "x'" + hex.EncodeToString([]byte(v)) + "'"
	case []byte:
		return "x'" + hex.EncodeToString(v) + "'"
	}
	panic(fmt.Sprintf("mysqllock: no literal of a %T", v))
}

// statement puts literals where the question marks are. No text of ours has one that is
// meant otherwise.
func statement(text string, args ...any) string {
	var b strings.Builder
	for _, arg := range args {
		before, after, _ := strings.Cut(text, "?")
		b.WriteString(before)
		b.WriteString(literal(arg))
		text = after
	}
	b.WriteString(text)
	return b.String()
}

// deadlocks is how often a statement is repeated that the server has rolled back in favour
// of another. The locks of hasp's own statements form no circle; another
// program's transaction on our tables, or a conflict between Galera's nodes, can.
const deadlocks = 8

// repeat repeats what the server says it has undone, and nothing else: any other error may mean
// that it was done.
func repeat(ctx context.Context, do func() error) error {
	for attempt := 0; ; attempt++ {
		err := do()
		if !undone(err) || attempt == deadlocks {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(time.Millisecond << attempt)):
		}
	}
}

// each runs a statement and calls scan for its rows.
func each(ctx context.Context, q querier, text string, scan func(*sql.Rows) error) error {
	return repeat(ctx, func() error { return once(ctx, q, text, scan) })
}

func once(ctx context.Context, q querier, text string, scan func(*sql.Rows) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rows, err := q.QueryContext(ctx, text)
	if err != nil {
		return explain(ctx, err)
	}
	for err == nil && rows.Next() {
		err = scan(rows)
	}
	if err == nil {
		err = rows.Err()
	}
	// A procedure's answer ends with its own status, behind the rows.
	return explain(ctx, errors.Join(err, rows.Close()))
}

// row runs a statement that answers with one row.
func row(ctx context.Context, q querier, text string, into ...any) error {
	found := false
	err := each(ctx, q, text, func(r *sql.Rows) error {
		found = true
		return r.Scan(into...)
	})
	if err == nil && !found {
		return sql.ErrNoRows
	}
	return err
}

// run executes a statement and returns how many rows it changed.
func run(ctx context.Context, q querier, text string) (n int64, err error) {
	err = repeat(ctx, func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r, err := q.ExecContext(ctx, text)
		if err == nil {
			n, err = r.RowsAffected()
		}
		return explain(ctx, err)
	})
	return n, err
}
