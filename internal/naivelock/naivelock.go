// Package naivelock is the lock that people write by hand on their database, for the controls
// of fault tests: a row under a primary key, with an owner and an expiry. It works on
// PostgreSQL, MySQL and MariaDB, and on good days.
//
// Its mistakes are those that are found in the wild. The holder does not look at its own
// deadline, nor at what its renewals answer; it renews through the pool that everybody uses;
// and a client without an answer asks again without knowing whether it has the lock already.
package naivelock

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

// Create makes the table if there is none. Of two that do so at once one may fail in PostgreSQL;
// then the table is there, and the second attempt sees it.
func Create(ctx context.Context, db *sql.DB) error {
	const stmt = "CREATE TABLE IF NOT EXISTS by_hand (name VARCHAR(100) PRIMARY KEY, owner VARCHAR(100) NOT NULL, expires BIGINT NOT NULL)"
	_, err := db.ExecContext(ctx, stmt)
	if err != nil {
		_, err = db.ExecContext(ctx, stmt)
	}
	return err
}

// Hold locks for a test, until the test ends at the latest, in a table that it makes.
func Hold(ctx context.Context, t testing.TB, db *sql.DB, name string, ttl time.Duration) *Lease {
	t.Helper()
	if err := Create(ctx, db); err != nil {
		t.Fatal(err)
	}
	l, err := Lock(ctx, db, name, ttl)
	if err != nil {
		t.Fatalf("the control cannot lock: %v", err)
	}
	t.Cleanup(func() {
		within, cancel := context.WithTimeout(context.Background(), ttl)
		defer cancel()
		_ = l.Release(within)
	})
	return l
}

// Lease is a lock that its owner believes to hold.
type Lease struct {
	released atomic.Bool
	stop     context.CancelFunc
	del      func(context.Context) error
}

var owners atomic.Int64

// Lock waits until it has the lock or ctx ends, and then renews it every third of the ttl.
func Lock(ctx context.Context, db *sql.DB, name string, ttl time.Duration) (*Lease, error) {
	owner := fmt.Sprint("owner-", owners.Add(1))
	expires := func() int64 { return time.Now().Add(ttl).UnixMilli() } // by the client's clock, of course
	attempt := func() bool {
		within, cancel := context.WithTimeout(ctx, ttl)
		defer cancel()
		if _, err := db.ExecContext(within, fmt.Sprintf("INSERT INTO by_hand VALUES ('%s', '%s', %d)", name, owner, expires())); err == nil {
			return true
		}
		r, err := db.ExecContext(within, fmt.Sprintf("UPDATE by_hand SET owner = '%s', expires = %d WHERE name = '%s' AND expires < %d",
			owner, expires(), name, time.Now().UnixMilli()))
		if err != nil {
			return false
		}
		n, err := r.RowsAffected()
		return err == nil && n == 1
	}
	for !attempt() {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	renewing, stop := context.WithCancel(context.Background())
	go func() {
		for ticker := time.NewTicker(ttl / 3); ; {
			select {
			case <-renewing.Done():
				ticker.Stop()
				return
			case <-ticker.C:
			}
			within, cancel := context.WithTimeout(renewing, ttl/3)
			_, _ = db.ExecContext(within, fmt.Sprintf("UPDATE by_hand SET expires = %d WHERE name = '%s' AND owner = '%s'", expires(), name, owner))
			cancel()
		}
	}()
	return &Lease{stop: stop, del: func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, fmt.Sprintf("DELETE FROM by_hand WHERE name = '%s'", name)) // also if it is another's by now
		return err
	}}, nil
}

// Held returns the holder's belief.
func (l *Lease) Held() bool { return !l.released.Load() }

// Release releases the lock.
func (l *Lease) Release(ctx context.Context) error {
	l.released.Store(true)
	l.stop()
	return l.del(ctx)
}
