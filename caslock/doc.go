// Package caslock makes a driver of any store that can read a record and replace it if it has not
// changed: compare and swap, for which a bucket, a cluster's API, a document database or a
// key-value server are enough. A [Store] for one of them takes about a hundred lines.
//
// Mutexes and elections with a published value; fencing tokens; renewal, eviction with a reason,
// adoption, lists of names. There is no queue: after a release, or the end of a dead holder, all
// who wait race, spread in time. Readers and permits are refused.
//
// # How it works
//
// Each name has one record, free or with one holder: an ID, a TTL, a stamp, and a nonce that is
// another one in each write. Who finds it free swaps itself in, and its holder renews it by a swap
// each third of the TTL. The store has no clock, and no two clocks are compared:
//
//   - A contender takes a dead holder's record when it has seen the same holder, stamp and nonce
//     for the holder's TTL plus 1 % on its own monotonic clock, counted from when its first read
//     had returned. The swap is the second look: it is refused if the record was renewed meanwhile.
//     (The scheme of DynamoDB's lock client and of Kubernetes' leader election, which compares a
//     version or whole seconds.)
//   - A holder judges itself: if its last confirmed renewal was sent longer ago than the TTL, by
//     the greater of its monotonic and its boot clock, it does not renew, although its record is
//     unchanged. The loss is told, and then the record freed. This is the exception to "a driver
//     reads no clock to decide whether anybody holds": only the holder's own loss is decided by it.
//   - No holder is called dead because of a stamp. A try that finds a record which looks over
//     observes it until it changes, or its TTL has passed: it takes so long, or as long as its
//     context allows. Where the record's TTL is longer than the client's it is refused at once, and
//     says since when it looks over. A list reads once, and says so, too, until its process has
//     seen the record unchanged for its TTL.
//   - Every write whose answer is lost, and every conflict on one's own record, is read back. A
//     renewal that is found so counts from before its own write was sent. A write that may still be
//     under way when its ticket leaves is made void by another write: the version on which it
//     depends is gone then.
//   - A free record stays, with its last token. It is deleted only after a retention, by a store
//     that can delete on a condition, so that a late write cannot find an absent record where it
//     has seen none.
//
// The rejected alternative: to compare the stamp with one's own clock, as most locks on buckets do.
// Two machines whose clocks are a TTL apart then hold at once.
package caslock
