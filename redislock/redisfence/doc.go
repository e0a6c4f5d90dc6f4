// Package redisfence checks writes in Redis or Valkey with a fencing token, in one script and one
// round trip: the greatest token seen is kept in a key beside the data, and is compared and raised
// in the same atomic step as your commands.
//
//	fence, err := redisfence.With(ctx, redisfence.Rueidis(client), lease, nil)
//	...read, think...
//	_, err = fence.Do(ctx, redisfence.Command{"SET", "{orders/42}:state", "paid"})
//
// [Writer.Do] runs commands, [Writer.Eval] runs your Lua script.
//
// # Other clients
//
// A client of another library is a [Client] of one method; see the example for go-redis. It
// must not repeat a script by itself when an answer is lost: that would write twice.
//
// # Caveats
//
// A script is atomic but is not rolled back: if one of several commands fails (a wrong type, out of
// memory), the ones before it have taken effect.
//
// In a cluster the keys of one call and the key of the fence must be in one slot, so your keys
// need the same hash tag. Options.Fence chooses the key if yours have a tag already.
//
// Redis forgets: a failover to a replica that lags, a restart without the append-only file or an
// eviction can lose the last writes and the fence with them, and then an old token is accepted
// again. The fence is as durable as the data beside it, and never more. Keep noeviction; do not let
// the key of a fence expire while an earlier holder can still run.
package redisfence
