// Package pglock keeps hasp's locks in PostgreSQL.
//
//	import _ "github.com/hasplock/hasp/pglock"
//	c, err := hasp.Open(ctx, "postgres://app:secret@db.example.org/app")
//
// [New] uses a pgx pool that the program has already, [NewDB] a *sql.DB.
//
// # Strategies
//
// table, the default, is first come, first served and carries every primitive. Queues are
// rows, changed by functions in the database under the row lock of the name, by the server's
// clock alone. A lock is a lease: it outlives its connection and a restart of the server,
// and a pause longer than the TTL loses it. A release grants to the next waiter in the same
// statement and notifies that client, which needs no further request.
//
// advisory is pg_advisory_lock on a separate connection for each lock: mutexes only, in the order
// of arrival (but not with fence=off). They last as long as the server sees the connection: a
// stopped holder keeps them, a terminated connection loses them at once. They can be shared with
// Rails, golang-migrate and all that call pg_advisory_lock by a number.
//
// # Caveats
//
// A replica that is promoted without having every commit can forget a grant, and then two
// hold until the first one's next renewal. Tokens still grow, unless clock and data both go
// back: let the resource check them. Behind a pool that hands connections out for the time
// of a transaction (pgbouncer's transaction mode), no notification arrives: waiters of
// table ask ten times a second, and advisory is refused. A transaction that
// stays open for hours keeps dead rows from being removed and makes busy names slow.
// `hasp doctor` names what it finds; docs/backends/postgres.md has the details and the
// options.
package pglock
