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

// expression is SQL that stands in a statement as it is.
type expression string

// literal writes a value into a statement: a string as hexadecimal digits, so that nothing
// in it can mean anything to the server, in any mode and character set.
//
// Placeholders would be the usual way. On a pool of the user's they cost a second round
// trip for each statement (prepare, then execute), unless its DSN has interpolateParams.
func literal(v any) string { return string(appendLiteral(nil, v)) }

func appendLiteral(b []byte, v any) []byte {
	switch v := v.(type) {
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case uint64:
		return strconv.AppendUint(b, v, 10)
	case string:
		return appendLiteral(b, []byte(v))
	case []byte:
		return append(hex.AppendEncode(append(b, "x'"...), v), '\'')
	case expression:
		return append(b, v...)
	}
	panic(fmt.Sprintf("mysqllock: no literal of a %T", v))
}

// statement puts literals where the question marks are. No text of ours has one that is
// meant otherwise.
func statement(text string, args ...any) string {
	b := make([]byte, 0, len(text)+1024) // most fit
	for _, arg := range args {
		before, after, _ := strings.Cut(text, "?")
		b = appendLiteral(append(b, before...), arg)
		text = after
	}
	return string(append(b, text...))
}

// deadlocks is how often a statement is repeated that the server has rolled back in favour
// of another. The locks of hasp's own statements nearly never form a circle (schema/2.sql); another
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

func once(ctx context.Context, q querier, text string, scan func(*sql.Rows) error) (err error) {
	defer caught(&err)
	done, err := turn(ctx, q)
	if err != nil {
		return err
	}
	defer done()
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
	n, _, err = change(ctx, q, text)
	return n, err
}

// change is run, and returns the statement's LAST_INSERT_ID as well.
func change(ctx context.Context, q querier, text string) (n int64, last uint64, err error) {
	err = repeat(ctx, func() (err error) {
		defer caught(&err)
		done, err := turn(ctx, q)
		if err != nil {
			return err
		}
		defer done()
		r, err := q.ExecContext(ctx, text)
		if err == nil {
			n, err = r.RowsAffected()
		}
		if err == nil {
			id, _ := r.LastInsertId() // which no driver fails to tell
			last = uint64(id)
		}
		return explain(ctx, err)
	})
	return n, last, err
}
