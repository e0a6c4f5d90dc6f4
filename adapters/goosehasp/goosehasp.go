// Package goosehasp has the migrations of github.com/pressly/goose take a hasp lock, so that of
// several instances that start at once one migrates and the others wait for it:
//
//	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations,
//		goose.WithLocker(goosehasp.New(client, "migrate/orders")))
//
// The lock may be in another store than the one that is migrated. It needs no connection and keeps
// no snapshot of that database, so CREATE INDEX CONCURRENTLY and a pooler in transaction mode are
// no trouble.
//
// goose does not ask its locker whether the lock is still held. After a loss the migration that is
// under way goes on, and so do those behind it: the run then ends with an error that wraps the
// loss. If that is too late, let each migration check a token in its transaction: docs/FENCING.md.
package goosehasp

import (
	"context"
	"database/sql"
	"errors"

	"github.com/pressly/goose/v3/lock"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/adapters/internal/held"
)

// Locker is a goose lock.Locker. Safe for use by several Providers and goroutines.
type Locker struct {
	name  string
	mutex *hasp.Mutex
	held  held.Leases
}

var _ lock.Locker = (*Locker)(nil)

// New returns a locker that takes the lock called name.
func New(c *hasp.Client, name string, opts ...hasp.LockOption) *Locker {
	return &Locker{name: name, mutex: c.Mutex(name, opts...)}
}

// Lock waits until this instance may migrate, or until ctx ends.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	lease, err := l.mutex.Lock(ctx)
	if err == nil {
		l.held.Put(l.name, lease)
	}
	return err
}

// Unlock gives the lock back. Its error wraps hasp.ErrLost if the lock was lost before.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error {
	lease := l.held.Take(l.name)
	if lease == nil {
		return errors.New("goosehasp: Unlock without Lock")
	}
	return lease.Release(ctx)
}
