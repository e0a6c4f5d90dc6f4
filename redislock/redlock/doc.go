// Package redlock keeps hasp's mutexes and elections on a majority of independent Redis or
// Valkey servers: the Redlock algorithm.
//
//	import _ "github.com/hasplock/hasp/redislock/redlock"
//	c, err := hasp.Open(ctx, "redlock://h1:6379,h2:6379,h3:6379,h4:6379,h5:6379")
//
// [New] uses clients that the program already has. The keys are those of redsync, node-redlock
// and others that do SET NX PX on the same servers: they and hasp exclude each other.
//
// # Promises
//
// Any minority of the servers may be down, hang or be cut off, without a failover and
// without a loss. There is no queue: every server sees requests in a different order,
// and none of them is the right one. There are no read-write locks and no semaphores, because
// the shared format has one value at a key; and no fencing tokens, because counters of
// independent servers do not make one that grows. If the resource must be able to refuse
// a late write, use a store that has tokens.
//
// # Assumptions
//
// Exclusion depends on a condition that no program can check: the servers' clocks run at nearly the
// same rate and are not stepped. A server that was started again, or emptied, has no vote until
// each lease that it may have forgotten is over, if all clients have one TTL. That binds hasp's
// clients: for other libraries a server that crashed must remember its locks (appendonly yes,
// appendfsync always) or stay away for the longest TTL in use. docs/backends/redlock.md has the
// details and the options.
package redlock
