// Package sqlitelock is a complete small driver, to read before writing another: locks in one
// SQLite file, for the processes of one machine.
//
//	import _ "github.com/hasplock/hasp/examples/driver"
//
//	c, err := hasp.Open(ctx, "sqlite:///var/lib/myapp/locks.db")
//
// docs/DRIVERS.md explains the rules, this package shows them: backend.go connects and reads,
// tx.go has the one kind of transaction, session.go renews, ticket.go is a place in the queue,
// operate.go has what is optional. The test is the conformance suite.
//
// # How it works
//
// A table has one row for each entry of every queue. Every change is one write transaction, and
// SQLite has one writer at a time: that is the whole of the concurrency. The transaction deletes
// what has expired, finds or makes the entry, and decides by driver.Decide.
// Nothing is announced, so a waiter looks every 25 ms.
//
// # What breaks it
//
// Expiry goes by the machine's wall clock, which all processes share. A step forwards expires
// entries early, and two may hold until the first one's next renewal is denied; its token is the
// smaller one. A step backwards keeps a dead holder's entry for longer. Network file systems have
// no locks that SQLite can rely on: the file must be on a local disk.
package sqlitelock
