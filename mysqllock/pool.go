package mysqllock

import (
	"context"
	"database/sql"
)

// pool is where requests get their connections. A pool of ours counts those alone that are used by
// requests: the ones that are kept for long, for renewals and for waiting, come out of the same pool beside them.
// So a client that waits has the connection for that which it has just asked with, and does not need
// another. A pool of the user's counts by itself.
type pool struct {
	*sql.DB
	turns chan struct{} // has room for those that may be used at a time; nil: it is not counted here
}

func newPool(db *sql.DB, connections int) *pool { return &pool{db, make(chan struct{}, connections)} }

// turn waits until the querier may be used, and returns what ends the use.
func turn(ctx context.Context, q querier) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, ok := q.(*pool)
	if !ok || p.turns == nil {
		return func() {}, nil
	}
	select {
	case p.turns <- struct{}{}:
		return p.done, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pool) done() { <-p.turns }
