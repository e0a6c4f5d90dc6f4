package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// pgxLock is the advisory lock of PostgreSQL as people take it by hand: a connection from the pool,
// which is kept while the lock is held. Nothing tells the holder that the connection has ended.
type pgxLock struct {
	pool *pgxpool.Pool
	conn *pgxpool.Conn
	name string
}

func newPgx(ctx context.Context, _, address string, _ time.Duration) (locker, string, error) {
	pool, err := pgxpool.New(ctx, address)
	if err == nil {
		err = pool.Ping(ctx)
	}
	return &pgxLock{pool: pool}, "pgx " + moduleVersion("github.com/jackc/pgx/v5"), err
}

// take runs a query with one row of one boolean on a connection that it keeps if the row is true.
func (p *pgxLock) take(query, name string) (ok bool, err error) {
	ctx := context.Background()
	if p.conn, err = p.pool.Acquire(ctx); err != nil {
		return false, err
	}
	p.name = name
	if err = p.conn.QueryRow(ctx, query, name).Scan(&ok); err != nil || !ok {
		p.conn.Release()
	}
	return ok, err
}

func (p *pgxLock) lock(name string) error {
	_, err := p.take("SELECT true FROM pg_advisory_lock(hashtextextended($1, 0))", name)
	return err
}

func (p *pgxLock) try(name string) (bool, error) {
	return p.take("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", name)
}

func (p *pgxLock) unlock() error {
	defer p.conn.Release()
	var held bool
	err := p.conn.QueryRow(context.Background(), "SELECT pg_advisory_unlock(hashtextextended($1, 0))", p.name).Scan(&held)
	if err == nil && !held {
		err = fmt.Errorf("%w: pg_advisory_unlock is false", errLost)
	}
	return err
}

func (p *pgxLock) check() (bool, error) { return false, errNone }
