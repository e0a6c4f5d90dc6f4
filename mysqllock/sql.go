package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/hasplock/hasp/driver"
)

// querier is a pool or one connection of it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// literal writes a value into a statement: a string as hexadecimal digits, so that nothing
// in it can mean anything to the server, whatever its modes and character sets are.
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
// of another. The locks of hasp's own statements form no circle; somebody else's
// transaction on our tables, or a conflict between Galera's nodes, can.
const deadlocks = 8

// each runs a statement and calls scan for its rows. It repeats what the server says it has
// undone, and nothing else: any other error may mean that it was done.
func each(ctx context.Context, q querier, text string, scan func(*sql.Rows) error) error {
	for attempt := 0; ; attempt++ {
		err := once(ctx, q, text, scan)
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
func run(ctx context.Context, q querier, text string) (int64, error) {
	for attempt := 0; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		r, err := q.ExecContext(ctx, text)
		if err == nil {
			return r.RowsAffected()
		}
		if err = explain(ctx, err); !undone(err) || attempt == deadlocks {
			return 0, err
		}
	}
}

// The server's error numbers that mean something to us.
const (
	errTooManyConnections = 1040
	errNoDatabaseAccess   = 1044
	errAccessDenied       = 1045
	errNoDatabase         = 1049
	errNoTable            = 1146
	errLockWait           = 1205
	errDeadlock           = 1213
	errNoProcedure        = 1305
	errHasChildren        = 1451
	errNoWait             = 3572 // MySQL; MariaDB says errLockWait
)

// refusals are answers that say: not done, and not for a fault of the request.
var refusals = map[uint16]string{
	errTooManyConnections: "the server has no connection left (max_connections)",
	1203:                  "the role has too many connections (max_user_connections)",
	1226:                  "the role has used up what it may",
	errNoDatabaseAccess:   "the role may not use this database",
	errAccessDenied:       "user or password is wrong, or the role may not come from here",
	errNoDatabase:         "there is no such database",
	1142:                  "the role may not do this to the table",
	1143:                  "the role may not do this to the column",
	1227:                  "the role lacks a privilege",
	1370:                  "the role may not EXECUTE the procedures",
	1021:                  "the server's disk is full",
	1114:                  "the table, or the disk that it is on, is full",
	1026:                  "the server cannot write to its disk",
	1041:                  "the server is out of memory",
	1290:                  "the server is read-only",
	1792:                  "the transaction is read-only",
	1836:                  "the server is read-only",
	3989:                  "the server is read-only",
}

func number(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// undone reports that the server has rolled the whole statement back by itself. A lock that
// was not granted in time rolls back no more than the last step, and the procedures' own
// handler the rest.
func undone(err error) bool {
	n := number(err)
	return n == errDeadlock || n == errLockWait
}

// missing reports that the tables, or the procedures, are not there.
func missing(err error) bool {
	n := number(err)
	return n == errNoTable || n == errNoProcedure
}

// answered reports that the server has answered, and the connection is as good as before.
func answered(err error) bool { return err == nil || number(err) != 0 || errors.Is(err, sql.ErrNoRows) }

// explain gives an error of the client library the meaning it has for the core. An error
// that the server did not give says nothing about what was done.
func explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && number(err) == 0:
		return ctx.Err() // what the closed connection said of it is no news
	case errors.Is(err, sqldriver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn):
		return fmt.Errorf("the connection broke: %w", err)
	}
	if why := refusals[number(err)]; why != "" {
		return fmt.Errorf("%w: %s (%w)", driver.ErrRefused, why, err)
	}
	return err
}
