package pglock

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Identity names the server by the number that initdb gave it, so that hosts, sockets and poolers
// that lead to it do not matter, and the database by its number, which a rename does not change.
// A copy of the server's files has the same number, as it should while it is its replica.
func (t *table) Identity(ctx context.Context) (string, error) {
	return t.identity(ctx, t.opts.Schema+"."+t.opts.Prefix)
}

// Identity of advisory has no schema: the locks are the database's, by number. Names that become
// numbers by another rule are other locks.
func (b *bound) Identity(ctx context.Context) (string, error) {
	return b.identity(ctx, b.opts.Key)
}

func (t *tables) identity(ctx context.Context, within string) (string, error) {
	var server, database int64
	err := t.safely(ctx, func(r runner) error {
		return one(ctx, r, `SELECT s.system_identifier, d.oid::bigint FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()`,
			nil, &server, &database)
	})
	if err != nil {
		return "", explain(ctx, err)
	}
	return fmt.Sprintf("postgres %d/%d %s %s", uint64(server), database, t.opts.Strategy, within), nil
}

var (
	_ driver.Identifier = (*table)(nil)
	_ driver.Identifier = (*bound)(nil)
)
