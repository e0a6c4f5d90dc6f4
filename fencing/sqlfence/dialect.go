package sqlfence

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/fencing"
)

// Dialect is the kind of database.
type Dialect int

// The databases. MariaDB counts as MySQL here.
const (
	PostgreSQL Dialect = iota + 1 // 11 or later
	MySQL                         // MySQL 8.0 or later, MariaDB 10.6 or later
	SQLite                        // 3.35 or later
)

func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

// identifier matches the allowed names of a user's table or column: quoting cannot fail, and no
// database folds them into another name.
var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// quote writes an identifier, or schema.table, for a statement: it may be a reserved word.
func (d Dialect) quote(name string) string {
	q := `"`
	if d == MySQL {
		q = "`"
	}
	return q + strings.ReplaceAll(name, ".", q+"."+q) + q
}

// qualified adds the schema to a name that has none: see Options.Table.
func (d Dialect) qualified(table string) string {
	schema := map[Dialect]string{PostgreSQL: "public.", SQLite: "main."}[d]
	if strings.Contains(table, ".") {
		return table
	}
	return schema + table
}

// arg is the placeholder of the nth argument, from 1.
func (d Dialect) arg(n int) string {
	if d == PostgreSQL {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

// list joins quoted columns.
func (d Dialect) list(columns []string) string {
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = d.quote(c)
	}
	return strings.Join(quoted, ", ")
}

func checkColumns(names ...string) error {
	for _, n := range names {
		if !identifier.MatchString(n) {
			return fmt.Errorf("%w: column %q does not match %s", fencing.ErrInvalid, n, identifier)
		}
	}
	return nil
}

// checkTable also allows a schema before the name.
func checkTable(name string) error {
	for i, part := range strings.Split(name, ".") {
		if i > 1 || !identifier.MatchString(part) {
			return fmt.Errorf("%w: table %q does not match %s, with at most one schema before it", fencing.ErrInvalid, name, identifier)
		}
	}
	return nil
}

// again reports whether a database's error says that the transaction was rolled back because of a
// conflict with others and may be run again: a serialization failure, a deadlock, a busy SQLite
// file. A time-out of a lock is none of these: after that wait another try makes no sense.
func again(err error) bool {
	switch state(err) {
	case "40001", "40P01":
		return true
	}
	switch number(err) {
	case 1020, 1213: // record has changed since last read (MariaDB), deadlock
		return true
	}
	var sqlite interface{ Code() int }
	if errors.As(err, &sqlite) {
		switch sqlite.Code() & 0xff { // the other bits are an extended code
		case 5, 6: // busy, locked
			return true
		}
	}
	return false
}

// notNow reports whether the error says that a row is locked by another transaction.
func notNow(err error) bool {
	n := number(err)
	return state(err) == "55P03" || n == 3572 || n == 1205 // NOWAIT, or lock_timeout and its like
}

// state is the SQLSTATE of a PostgreSQL error, "" for others. pgx and lib/pq both return it by this
// method, so that neither must be linked here.
func state(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// number is the number of a MySQL error, 0 for others. Its driver has that in a field and in no
// method; reflection reads it without linking the driver. The text of the message would have it
// too, but texts change.
func number(err error) uint64 {
	if err == nil {
		return 0
	}
	if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct {
		if f := v.FieldByName("Number"); f.IsValid() && f.Kind() == reflect.Uint16 {
			return f.Uint()
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return number(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if n := number(inner); n != 0 {
				return n
			}
		}
	}
	return 0
}
