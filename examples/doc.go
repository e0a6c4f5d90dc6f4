// Package examples holds no code: each directory is a program to read and to run.
//
//	cron       a job that runs exactly once per slot, though every machine starts it
//	deploy     a rolling deploy: a command on each machine, on no more than n at once
//	inventory  stock in PostgreSQL, with the lock's token checked by the database
//	leader     an HTTP server: one leads, the others redirect to it
//	scheduler  a leader elected in the PostgreSQL that it works on, its token on the row
//	moving     a job that moves from another lock to hasp's in a rolling update
//	workers    a pool of workers on all machines, with no more than n jobs at once
//	driver     a driver for another store
//	keyvalue   locks in any store that can replace a value if it has not changed, by package caslock
//
// They run on a directory of this machine, or on the store that -store or HASP_STORE names:
//
//	go run ./cron
//	HASP_STORE=redis://localhost go run ./cron
//
// The tests build each program, run several copies of it at once, and check what they did.
package examples
