package sqlitelock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

func init() {
	driver.Register("sqlite", func(ctx context.Context, u *url.URL) (driver.Backend, error) {
		if u.User != nil || u.Host != "" || u.Opaque != "" || len(u.Path) < 2 {
			return nil, fmt.Errorf("%w: a sqlite URL has a path and nothing else: sqlite:///PATH", driver.ErrInvalid)
		}
		if err := driver.NewParams(u.Query()).Err(); err != nil {
			return nil, err
		}
		return open(ctx, u.Path)
	})
}

// Open opens the store of a URL, sqlite:///PATH. The file is made if it is missing.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "sqlite")
}

// Seq is the rowid, and AUTOINCREMENT keeps the greatest one ever used in a table of SQLite's
// own: it survives an empty queue and a restart. A value may be NULL, which is an empty one.
const schema = `
CREATE TABLE IF NOT EXISTS hasp_entries (
	seq      INTEGER PRIMARY KEY AUTOINCREMENT,
	name     TEXT NOT NULL,
	id       TEXT NOT NULL,
	session  TEXT NOT NULL,
	units    INTEGER NOT NULL,
	capacity INTEGER NOT NULL,
	owner    TEXT NOT NULL,
	since    INTEGER NOT NULL, -- ns, the owner's clock
	value    BLOB,
	expires  INTEGER NOT NULL, -- ms, the store's clock
	UNIQUE (session, name, id) -- another client may choose the id that a client has
);
CREATE INDEX IF NOT EXISTS hasp_entries_name ON hasp_entries (name, seq);`

type backend struct {
	db   *sql.DB
	path string
	turn chan struct{} // see turns
}

// turns has a channel with one place for each file. SQLite is not fair: a writer that finds it busy
// tries again later, and may find it busy for ever. The writers of this process queue here, in
// order and with their contexts; only those of other processes are left to SQLite.
var turns sync.Map // path -> chan struct{}

func open(ctx context.Context, path string) (driver.Backend, error) {
	// busy_timeout is how long SQLite itself waits for another process's transaction, and no
	// context ends that: it must be under the 100 ms that a method may take. synchronous=normal:
	// a power loss may take back the last commits, but all who were told of them live on this
	// machine too, and the tokens after it are greater by the clock (see insert).
	pragmas := url.Values{
		"_pragma": {"busy_timeout(50)", "journal_mode(wal)", "synchronous(normal)"},
		"_txlock": {"immediate"}, // every transaction is a writer from its first statement
	}
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: pragmas.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // there is one writer at a time, and readers are short
	turn, _ := turns.LoadOrStore(path, make(chan struct{}, 1))
	b := &backend{db: db, path: path, turn: turn.(chan struct{})}
	err = b.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, schema)
		return err
	})
	if err != nil {
		db.Close()
		return nil, err
	}
	return b, nil
}

func (b *backend) String() string { return "sqlite://" + b.path }

func (b *backend) Close() error { return b.db.Close() }

func (b *backend) Traits() driver.Traits {
	return driver.Traits{
		FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true,
		Liveness: driver.Leased,
	}
}

// Open sends nothing: each entry has its own expiry, and lasts for the TTL from its Enqueue.
func (b *backend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	return &session{backend: b, opts: o, id: rand.Text(), tickets: map[string]*ticket{}}, o.TTL, ctx.Err()
}

func (b *backend) List(ctx context.Context, name string, limit int) (queue []driver.Entry, err error) {
	err = b.write(ctx, func(tx *sql.Tx) error {
		queue, err = current(ctx, tx, name, limit)
		return err
	})
	return queue, err
}

func (b *backend) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	rows, err := b.db.QueryContext(ctx, `SELECT DISTINCT name FROM hasp_entries WHERE expires > `+now)
	if err != nil {
		return refine(ctx, err)
	}
	defer rows.Close()
	var names []string // read to the end first: yield may use the only connection
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return refine(ctx, err)
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		return refine(ctx, err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, prefix) && !yield(name) {
			break
		}
	}
	return nil
}
