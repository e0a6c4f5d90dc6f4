// Package mysqllock keeps hasp's locks in MySQL 8 or MariaDB 10.6 and newer.
// Its tests run on MariaDB; on MySQL it has not been run.
//
//	import _ "github.com/hasplock/hasp/mysqllock"
//	c, err := hasp.Open(ctx, "mysql://user@127.0.0.1/app") // the password from MYSQL_PWD
//
// [New] uses a *sql.DB that the program has already.
//
// # Strategies
//
// table, the default, is first come, first served and carries every primitive. A queue is
// rows under unique indexes, changed by stored procedures, by the server's clock alone. A
// release grants the next waiter in the same step.
//
// getlock is the server's own GET_LOCK: mutexes only, bound to one connection each. They end when
// the server sees the connection end, not when a time is over.
//
// # Caveats
//
// A table's locks are as durable as the server's commits: a replica that is promoted without
// them has forgotten grants. A connection-bound lock is kept by a holder that is merely
// stopped, and by a network that is cut until the server's TCP keepalive gives up. GET_LOCK is
// not replicated: on Galera each node has separate locks. Let the resource check tokens;
// `hasp doctor` names the settings that matter; docs/backends/mysql.md has the rest.
package mysqllock
