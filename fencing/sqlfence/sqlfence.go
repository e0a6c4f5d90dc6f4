package sqlfence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/retry"
)

// DefaultTable is the name of the table that keeps the tokens; its schema is Options.Table's.
const DefaultTable = "hasp_fence"

// Options are the settings of a Fence. nil or the zero value means the defaults.
type Options struct {
	// Table keeps the tokens: a name, or schema.name, of lower-case letters, digits and '_'. A name
	// without a schema is in public (PostgreSQL) or main (SQLite), for any search_path: roles
	// with different paths would compare in different tables, and a stale write would pass. In
	// MySQL it is in the connection's database. Default: DefaultTable.
	Table string
	// Tries is how often a transaction is run that collides with others, before it fails with
	// fencing.ErrConflict. Default: 10, which takes about half a second.
	Tries int
}

// Fence compares tokens in one database. It has no state: all methods may be called at once
// from many goroutines, and any number of Fences may share a table.
type Fence struct {
	dialect Dialect
	table   string
	tries   int
	check   string // the comparing statement
}

// New returns a fence. It sends nothing to the database.
func New(d Dialect, o *Options) (*Fence, error) {
	g := &Fence{dialect: d, table: DefaultTable, tries: retry.Tries}
	if o != nil {
		if o.Table != "" {
			g.table = o.Table
		}
		if o.Tries != 0 {
			g.tries = o.Tries
		}
	}
	if d < PostgreSQL || d > SQLite {
		return nil, fmt.Errorf("%w: there is no %s; use PostgreSQL, MySQL or SQLite", fencing.ErrInvalid, d)
	}
	if g.tries < 1 {
		return nil, fmt.Errorf("%w: tries must be at least 1, not %d", fencing.ErrInvalid, g.tries)
	}
	if err := checkTable(g.table); err != nil {
		return nil, err
	}
	g.table = d.qualified(g.table)
	g.check = g.checkSQL()
	return g, nil
}

// Schema returns the statement that creates the table, for your migrations. It does nothing if the
// table exists.
//
// The name is compared byte by byte: a collation that folds case would give two locks one
// token.
func (g *Fence) Schema() string {
	head := "CREATE TABLE IF NOT EXISTS " + g.dialect.quote(g.table)
	switch g.dialect {
	case PostgreSQL:
		// Room for the new version of a row on the same page: each fenced transaction
		// makes one, and then no index needs to be touched.
		return head + ` (name text COLLATE "C" PRIMARY KEY, token bigint NOT NULL) WITH (fillfactor = 50)`
	case MySQL:
		return head + " (name varbinary(512) PRIMARY KEY, token bigint NOT NULL) ENGINE=InnoDB"
	}
	return head + " (name text PRIMARY KEY, token integer NOT NULL) WITHOUT ROWID"
}

// checkSQL returns the statement that compares and raises in one step, and returns the greatest
// token. It sets the greater of both and does not use WHERE to skip a smaller one: a refused token
// would then need a second statement to learn the greater one.
//
// It writes the row even if the token is the same. The row's lock would be enough at READ
// COMMITTED; at REPEATABLE READ a transaction that waited for the lock must be refused, since its
// snapshot is older than the commit it waited for, and the database only does so if the row has
// changed.
func (g *Fence) checkSQL() string {
	insert := "INSERT INTO " + g.dialect.quote(g.table)
	switch g.dialect {
	case PostgreSQL:
		return insert + " AS f (name, token) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET token = greatest(f.token, excluded.token) RETURNING token"
	case MySQL:
		// MySQL has no RETURNING; LAST_INSERT_ID(x) sends x back with the answer, for a changed or
		// an unchanged row. The number of affected rows does not help: it depends on a flag of the
		// connection (clientFoundRows).
		return insert + " (name, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = last_insert_id(greatest(token, ?))"
	}
	return insert + " (name, token) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET token = max(token, excluded.token) RETURNING token"
}

// CheckSQL returns the comparing statement, for a PostgreSQL client other than database/sql. Its
// arguments are the name and the token; it returns one row with the greatest token seen.
func (g *Fence) CheckSQL() string { return g.check }

// LookSQL returns a statement that fails if the table does not exist, and finds no row otherwise.
func (g *Fence) LookSQL() string {
	return "SELECT name, token FROM " + g.dialect.quote(g.table) + " WHERE 1 = 0"
}

// Tries returns the setting.
func (g *Fence) Tries() int { return g.tries }

// Queryer is a *sql.DB, *sql.Conn or *sql.Tx.
type Queryer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Transact runs fn in a transaction without any token, and repeats it as Writer.Do does.
// Transactions with Table.Lock need that: if they lock several rows, they can deadlock.
func (g *Fence) Transact(ctx context.Context, db *sql.DB, o *sql.TxOptions, fn func(tx *sql.Tx) error) error {
	return retry.Do(ctx, g.tries, func() (bool, error) {
		err := g.transact(ctx, db, o, fn)
		return again(err), err
	})
}

// EnsureTable creates the table if it does not exist. Programs without migrations call it once when
// they start. If the table exists, the role needs no right to create it.
func (g *Fence) EnsureTable(ctx context.Context, db *sql.DB) error {
	return retry.Do(ctx, g.tries, func() (bool, error) {
		// CREATE TABLE IF NOT EXISTS asks for the right to create before it looks.
		if g.there(ctx, db) {
			return false, nil
		}
		_, err := db.ExecContext(ctx, g.Schema())
		// IF NOT EXISTS of PostgreSQL is no lock: if two create the table at once, one fails in the
		// catalog, at the table, its type or their unique index, and finds the table when it looks
		// again.
		s := state(err)
		exists := s == "23505" || s == "42P07" || s == "42710"
		return exists || again(err), g.NotMade(err)
	})
}

// NotMade explains an error of the statement that creates the table.
func (g *Fence) NotMade(err error) error {
	switch {
	case err == nil:
		return nil
	case state(err) == "42501", number(err) == 1142: // the right is missing
		return fmt.Errorf("make table %s: this role may not create it; the owner of the database runs what Schema returns, and GRANT SELECT, INSERT, UPDATE ON %[1]s TO the role; "+
			"for %[2]s in PostgreSQL `hasp migrate --grant ROLE` does both: %[3]w", g.table, DefaultTable, err)
	}
	return fmt.Errorf("make table %s: %w", g.table, err)
}

// there reports whether the table can be read. If not, the attempt to create it gives the reason.
func (g *Fence) there(ctx context.Context, db *sql.DB) bool {
	rows, err := db.QueryContext(ctx, g.LookSQL())
	if err != nil {
		return false
	}
	for rows.Next() {
	}
	return rows.Close() == nil && rows.Err() == nil
}
