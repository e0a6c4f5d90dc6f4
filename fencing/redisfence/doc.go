// Package redisfence checks writes in Redis or Valkey with a fencing token, in one script and
// one round trip: the greatest token seen is kept in a key beside the data, and is compared
// and raised in the same atomic step in which your commands run.
//
//	w, err := redisfence.Advance(ctx, redisfence.Rueidis(client), lease.Name(), lease.Token(), nil)
//	...read, think...
//	_, err = w.Do(ctx, redisfence.Command{"SET", "{orders/42}:state", "paid"})
//
// [Writer.Do] runs commands, [Writer.Eval] a Lua script of yours.
//
// # Other clients
//
// A client of another library is a [Client] of one method; see the example for go-redis. It
// must not repeat a script by itself when an answer is lost: that would write twice.
//
// # Caveats
//
// A script is atomic but is not rolled back: if one of several commands fails (a wrong type,
// out of memory), those before it have been done.
//
// In a cluster the keys of one call and the key of the fence must be in one slot, so your keys
// need the same hash tag. Options.Fence chooses the key if yours have a tag already.
//
// Redis forgets: a failover to a replica that lags, a restart without the append-only file or
// an eviction can lose the last writes and the fence with them, and then an old token is
// believed again. The fence is as durable as the data that it stands beside, and never more.
// Keep noeviction; do not let the key of a fence expire while a holder from before can live.
package redisfence
