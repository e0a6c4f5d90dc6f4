// Package hasp makes a lock that holds between machines out of the store you
// already run, or, with none, between the processes of one machine.
//
//	c, err := hasp.Open(ctx, "file:///var/lib/hasp") // import _ ".../hasp/filelock"
//	defer c.Close()
//	lease, err := c.Mutex("orders/42").Lock(ctx)
//	if err != nil { ... }
//	defer lease.Unlock()
//	write(lease.Bind(ctx), lease.Token())
//
// # What it promises
//
// Every lock name is one queue in the store; a mutex, a read-write lock, a semaphore
// and an election are the same queue with other units. A store that can keep an order
// serves first come, first served, and wakes only the one who is next.
//
// # What no lock can promise
//
// A lease can be lost while its holder is paused, cut off or suspended: the store gives
// the lock to the next, and the first holder still believes. hasp therefore
//   - ends its own trust before the store may hand the lock on, by a separate
//     timer: [Lease.Context] is cancelled, [Lease.Held] is false;
//   - gives every grant of a store with Traits().Fencing a fencing token ([Lease.Token]), which
//     grows from grant to grant.
//
// What is left is the moment between the last check and the effect of a write. Only the
// resource itself can close it, by refusing a write whose token is smaller than one it
// has seen. Without that check, exclusion holds while no pause is longer than the safety margin
// ([WithSafetyMargin]). docs/LEASE.md has the states of a lease and the window in which it is
// trusted, docs/GUARANTEES.md the promises, numbered, for each store.
package hasp
