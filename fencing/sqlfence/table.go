package sqlfence

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hasplock/hasp/fencing"
)

// The errors of the methods of Table, beside fencing.ErrStale and fencing.ErrConflict.
var (
	// ErrNoIndex: no unique index of the table finds the row. Nothing was locked or written.
	ErrNoIndex = errors.New("no usable unique index")
	// ErrNotFound: there is no such row.
	ErrNotFound = errors.New("no such row")
	// ErrLocked: another transaction has the row, and the caller did not want to wait longer.
	ErrLocked = errors.New("row is locked by another transaction")
)

// Table is one of your tables, whose rows are found by a primary key or another unique index.
// Fence.Table makes it and proves that. It may be used by many goroutines.
type Table struct {
	fence *Fence
	name  string
	key   []string
	index string          // MySQL: the index that finds the row
	text  map[string]bool // MySQL: columns that are compared as text
}

// Columns are columns of a row with their values, or with pointers to variables. Lock and
// Modify scan into the pointers; Modify and Row.Set write the values.
type Columns map[string]any

// Table returns the table whose rows the columns of key find. It asks the database's catalog
// and refuses (ErrNoIndex) unless a unique index covers them: one whose columns are all
// among key, so that a key has one row at most.
//
// Without such an index "the row" may be many, and in MySQL far more than that: InnoDB locks every
// row that a statement looks at, matching or not, until the transaction ends; without an index, all
// rows and the gaps between them. So a helper that locks must refuse such a table. The index must
// be valid, cover whole columns (no prefix, no expression) and all rows (no WHERE), and not be
// deferrable; in MySQL the table must be InnoDB, since others have no row locks.
//
// The proof holds for this moment. In MySQL each statement also names the index, so that it fails
// if the index is dropped later, and does not read the whole table; elsewhere only matching rows
// are ever locked.
func (g *Fence) Table(ctx context.Context, db Queryer, name string, key ...string) (*Table, error) {
	if err := checkTable(name); err != nil {
		return nil, err
	}
	if len(key) == 0 {
		return nil, fmt.Errorf("%w: a row of table %s cannot be found by no columns", fencing.ErrInvalid, name)
	}
	if err := checkColumns(key...); err != nil {
		return nil, err
	}
	indexes, err := g.dialect.uniqueIndexes(ctx, db, name)
	if err != nil {
		return nil, fmt.Errorf("read the indexes of table %s: %w", name, err)
	}
	for _, ix := range indexes {
		if ix.covers(key) {
			return &Table{fence: g, name: name, key: slices.Clone(key), index: ix.name, text: ix.text}, nil
		}
	}
	return nil, fmt.Errorf("%w: table %s, if there is one, cannot find a single row by (%s); unique indexes: %s",
		ErrNoIndex, name, strings.Join(key, ", "), describe(indexes))
}

// statement collects a statement with its arguments.
type statement struct {
	dialect Dialect
	strings.Builder
	args []any
}

func (t *Table) statement() *statement { return &statement{dialect: t.fence.dialect} }

// arg adds an argument and its placeholder.
func (s *statement) arg(v any) *statement {
	s.args = append(s.args, v)
	s.WriteString(s.dialect.arg(len(s.args)))
	return s
}

func (s *statement) add(text ...string) *statement {
	for _, t := range text {
		s.WriteString(t)
	}
	return s
}

// from names the table, and in MySQL the index that must be used.
func (t *Table) from() string {
	d := t.fence.dialect
	if d == MySQL {
		return d.quote(t.name) + " FORCE INDEX (" + d.quote(t.index) + ")"
	}
	return d.quote(t.name)
}

// where adds the condition that finds the row.
func (t *Table) where(s *statement, key []any) {
	for i, column := range t.key {
		s.add([]string{" WHERE ", " AND "}[min(i, 1)], s.dialect.quote(column), " = ").arg(key[i])
	}
}

// set adds the assignments of columns.
func (c Columns) set(s *statement) {
	for i, column := range c.names() {
		if i > 0 {
			s.add(", ")
		}
		s.add(s.dialect.quote(column), " = ").arg(c[column])
	}
}

// names are sorted, so that equal calls make equal statements.
func (c Columns) names() []string { return slices.Sorted(maps.Keys(c)) }

func (c Columns) values() []any {
	values := make([]any, 0, len(c)+1)
	for _, name := range c.names() {
		values = append(values, c[name])
	}
	return values
}

// checkKey refuses keys that would not use the index. MySQL compares a text column with a number by
// converting every row's text to a number: such a statement looks right and locks the whole table.
func (t *Table) checkKey(key []any) error {
	if len(key) != len(t.key) {
		return fmt.Errorf("%w: %d values for the key (%s) of table %s", fencing.ErrInvalid, len(key), strings.Join(t.key, ", "), t.name)
	}
	for i, column := range t.key {
		v, err := driver.DefaultParameterConverter.ConvertValue(key[i])
		if err != nil {
			return fmt.Errorf("%w: value of %s: %w", fencing.ErrInvalid, column, err)
		}
		if v == nil {
			return fmt.Errorf("%w: %s is NULL, which equals nothing", fencing.ErrInvalid, column)
		}
		if !t.text[column] {
			continue
		}
		switch v.(type) {
		case string, []byte:
		default:
			return fmt.Errorf("%w: column %s of table %s is text, and compared with a %T it would use no index: give a string",
				fencing.ErrInvalid, column, t.name, v)
		}
	}
	return nil
}

func (t *Table) check(c Columns, key []any, more ...string) error {
	if err := checkColumns(append(c.names(), more...)...); err != nil {
		return err
	}
	return t.checkKey(key)
}

// about adds the table and the row to an error.
func (t *Table) about(err error, verb string, key []any) error {
	shown := make([]string, len(key))
	for i, v := range key {
		shown[i] = t.key[i] + " = " + fmt.Sprint(v)
		if b, ok := v.([]byte); ok {
			shown[i] = fmt.Sprintf("%s = %q", t.key[i], b)
		}
	}
	return fmt.Errorf("%s %s (%s): %w", verb, t.name, strings.Join(shown, ", "), err)
}
