// Package history records what the clients of a lock believed, and checks it afterwards.
//
//	rec, err := history.Open(path)                     // or New: in memory
//	op := rec.Acquire("p1/g3", "orders/42", history.Exclusive())
//	lease, err := c.Mutex("orders/42").Lock(ctx)
//	op.Granted(lease.Token(), 0)                       // or Busy, Failed, Unknown
//	stop := op.Watch(lease.Held, lease.Context().Done(), 5*time.Millisecond)
//	... the work ...
//	stop()
//	op.Releasing()
//	op.Released()                                      // or NotHeld, ReleaseUnknown
//	...
//	violations := history.Check(h, history.Options{Fencing: true, FIFO: true})
//
// # What counts as evidence
//
// A check reports a violation only if no correct lock could have led to the record, under any
// scheduling between a library's call and the clock read beside it. So each stamp is taken on the
// side where it proves less: a grant counts from after Lock returned, a release from before Release
// was called, and Held() from before it was asked. The span in between is the operation's certain
// hold:
//
//   - released with success: until the release was called, because success says that the
//     entry was still there;
//   - otherwise, if Held() was ever asked: until just before it last said yes. A process
//     that was stopped records its loss when it goes on, which may be long after the next
//     grant and is no fault;
//   - otherwise: until the loss was recorded, the client being taken at its word;
//   - otherwise (killed, never released): none.
//
// # Clocks
//
// Stamps of all processes on one machine are on one scale; see clock_linux.go. Histories
// of several machines cannot be merged.
//
// # Checks
//
// [Exclusion], [Tokens], [Beliefs] and [Fair] take n log n time and see violations of one
// kind each. [Check] runs them all. Package tests/internal/linear asks in addition whether any
// order of grants and ends explains the whole record of a name.
package history
