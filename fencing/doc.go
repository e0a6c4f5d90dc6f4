// Package fencing is the resource's side of a fencing token: the place where a write is made
// is the only one that can refuse it when it comes too late.
//
// # Why a lock is not enough
//
//	holder A            store                holder B            resource
//	lock: token 87 <--- granted
//	Held()? yes
//	...stopped: garbage collection, SIGSTOP, a suspended machine, a slow disk...
//	                    TTL over
//	                    granted ----------->  lock: token 88
//	                                          write "B" ------->  "B"
//	...continues with the line after Held()
//	write "A" ------------------------------------------------->  "A": B's write is gone
//
// No check by A helps, since the pause may always come after the check. With a fence the resource
// remembers the greatest token that it has seen, and the last line becomes
//
//	write "A", token 87 --------------------------------------->  refused: 88 was here
//
// # The rule
//
//  1. Advance first. A new holder tells the resource its token before it reads anything
//     that it will base a write on. From then on every older token is refused, also if
//     the new holder has not written yet: without this step an older holder could still
//     write between the new one's read and its write. So in every package a function With
//     advances, and returns the only thing that can write.
//  2. Then every write carries the token. A smaller one than the resource has seen fails
//     with a [*StaleError] and changes nothing. An equal one is allowed: a holder writes
//     more than once.
//  3. Comparing and writing are one atomic step at the resource. A check that is over when
//     the write begins is the pause again, at another place.
//
// With that: no write of token t is applied after a write or With of t' > t (S3 in
// docs/GUARANTEES.md). Nothing is assumed about clocks, pauses or networks, only that the lock's
// tokens grow, as Traits().Fencing says.
//
// # Where
//
// This package has the rule's errors and [Fence], for a resource that lives in the memory of one
// process. One package for each other kind of resource, so that a program links only what it uses:
// sqlfence (database/sql), pgxfence, redisfence, etcdfence, zkfence, filefence, httpfence.
// docs/FENCING.md compares them, with their costs and limits.
//
// # Caveats
//
// A fence protects what is written through it. One unfenced writer undoes it.
//
// The resource keeps one number for each lock name, for ever: if it forgets it (a table that is
// truncated, a key that is evicted, a snapshot that is restored), it accepts any token next.
//
// Tokens of different locks, or of one name on different stores, cannot be compared. When a
// lock moves to another store, see docs/FENCING.md.
package fencing
