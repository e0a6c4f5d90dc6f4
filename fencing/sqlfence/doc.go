// Package sqlfence checks writes in a PostgreSQL, MySQL, MariaDB or SQLite database, over
// database/sql and any driver. It also has the two classic schemes of databases, for rows that need
// no distributed lock.
//
// # With a distributed lock
//
// [Fence.With] tells the database the token of your lease and returns the [Writer] of this lease;
// then [Writer.Do] runs your transactions. The first statement of each compares the token with the
// greatest one seen, which one small table keeps for each lock name, and raises it. Your tables
// stay as they are:
//
//	g, err := sqlfence.New(sqlfence.PostgreSQL, nil)
//	err = g.EnsureTable(ctx, db) // or put g.Schema() among your migrations
//
//	lease, err := c.Mutex("orders/42").Lock(ctx)
//	fence, err := g.With(ctx, db, lease)
//	...read, think...
//	err = fence.Do(ctx, func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = 42")
//		return err
//	})
//
// [Table.With] is for rows that keep the token themselves, in a separate column: a single
// statement, and no further table.
//
// # Without
//
// [Table.Modify] is the optimistic scheme: read, compute, and write only if a version column
// has not moved. [Table.Lock] is the classical pessimistic lock: SELECT ... FOR UPDATE
// on your own row, which a unique index finds, with a bound on the waiting. docs/FENCING.md says
// when these beat a distributed lock.
//
// # How transactions of one name are ordered
//
// The comparing statement takes the lock of the name's row and holds it until the transaction ends.
// So a transaction under token t and a later one under t' > t cannot overlap: either the first has
// committed before the second has compared, or the first finds t' and is rolled back. This works at
// any isolation level; at REPEATABLE READ and SERIALIZABLE the database may refuse colliding
// transactions, and Do begins again.
//
// Because it comes first, the comparison is also the transaction's first lock and its snapshot is
// not older: your function reads everything that earlier holders wrote. Transactions under one lock
// name run one after the other.
//
// The lock is held for as long as the transaction lasts, which in MySQL may end before your
// function does: see [ErrEnded].
package sqlfence
