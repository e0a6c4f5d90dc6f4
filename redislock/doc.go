// Package redislock keeps hasp's locks in Redis or Valkey: a single server, the master of a
// Sentinel set, or a cluster.
//
//	import _ "github.com/hasplock/hasp/redislock"
//	c, err := hasp.Open(ctx, "redis://127.0.0.1:6379")
//
// [New] and redislock/goredis use a client that the program already has.
//
// # Strategies
//
// queue, the default, is first come, first served and has every primitive. The queue of a name
// is one hash, which Lua scripts change by the server's clock alone. A release grants the next
// waiter in the same step and sends the token to that client, which needs no further request.
//
// setnx and redisson share mutexes with other libraries: setnx with all that do SET NX PX and a
// compare-and-delete (redsync, redislock, node-redlock, redis-py), redisson with Redisson's
// RLock. A shared format has its limits: no order, no read-write locks, no semaphores, no
// elections.
//
// # Caveats
//
// A server that restarts without its append-only file, is emptied, or is replaced by a replica can
// forget a grant. It then grants nothing until each lease that may be forgotten is over, if all
// clients have one TTL. Other libraries that share locks of setnx and redisson do not wait. Tokens
// still grow, unless clock and data both go back: let the resource check them. `hasp doctor` checks
// the settings that matter; docs/backends/redis.md has the options, docs/internals/redis.md the format.
package redislock
