// Package driver has the interfaces that a store implements to carry hasp's locks.
// Applications import the root package; only drivers import this one.
//
// # The model
//
// Every lock name is an ordered queue of entries. An entry asks for units of a
// capacity, and there is one rule, [Decide]:
//
//	An entry holds iff (units ahead of it) + (its own units) <= capacity.
//
// A mutex and the writer of a read-write lock ask for [Whole] of Whole, a reader
// for 1 of Whole, k permits of a semaphore of n for k of n, a leader for Whole of
// Whole with a published value. Units of entries that still wait count as much as
// those of entries that hold: no entry overtakes, so none starves.
//
// # The invariants
//
// drivertest holds a driver to each of them.
//
//  1. Seq grows strictly per name and is never used twice: not after the queue was
//     empty, not after the store restarted. It is the order and, where
//     [Traits].Fencing says so, the fencing token.
//  2. Nothing is ever inserted ahead of an existing entry.
//  3. Once Enqueue has returned, every later view of the queue includes each entry
//     with a smaller Seq that has not left. The set ahead of an entry can then only
//     shrink, so a stale view delays an admission but never makes one too early.
//  4. Leaving is final. Only absence from the store admits the next entry; a client
//     never decides the expiry of another by its local clock. The one exception is a store
//     without a clock (package caslock): there a client takes an entry that it has seen unchanged
//     for the TTL and 1 % on its monotonic clock, by a write that fails if it has changed after
//     all; and an owner leaves by itself when that much may have passed since it sent its last
//     renewal. No two machines' clocks are compared.
//  5. The owner's trust ends before the store may remove its entry. The core does
//     the arithmetic; the driver must return an honest duration from [Backend].Open and
//     [Session].KeepAlive, counted from before the call was made.
//
// # What a driver must, may and must not do
//
// A method returns soon after its context ends (100 ms), also on a silent network, and
// at once if it has ended already. It returns the context's error then, and leaves the
// ticket usable: the core calls Leave on it with another context.
//
// The core makes one Ticket for an ID. Calling its Enqueue again is how an ID is asked
// for twice.
//
// A driver never retries a request that is not idempotent, and switches off client
// libraries that do: an unknown outcome is reported as an error, the core asks again
// under the same ID.
//
// A driver starts no goroutine that Close does not end, reads no clock to decide
// whether anybody (itself included) still holds (but for the exception of invariant 4), and
// never re-creates an entry while renewing it.
//
// An error that wraps [ErrGone] says: the store itself answered that the entry (or
// the session) does not exist. It is final. [ErrMismatch], [ErrUnsupported] and
// [ErrInvalid] are final refusals, [ErrRefused] is one that may pass, unless the error
// wraps [ErrInvalid] too. Every other error means "unknown": the core asks again, under the
// same ID, until the caller's context ends, or for one TTL if the entry has never been seen
// in the queue.
//
// From version 0.1 on, these interfaces change in a minor version only, and the change log names
// each change.
package driver
