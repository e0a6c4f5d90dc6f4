// Package torture runs hasp, or a lock of somebody else's, on a real store while it stops, cuts off
// and kills the clients, and judges afterwards what they believed. It is `hasp-torture`;
// docs/TORTURE.md is for its users.
//
// # The parts
//
// [Run] is the coordinator. It starts worker processes of this same program ([Worker]), each behind
// a separate proxy (internal/faultnet), carries out the plan of faults ([Plan]) on those that hold,
// and judges the record (Verdict).
//
// A worker takes and gives back locks over and over, and records what it is told (internal/history,
// recorded by internal/recordedhold: the code of the test suite's own fault runs). Each time that
// it believes to hold, it writes to two registers, files that every worker shares: one takes any
// write, the other refuses a smaller token (the rule of package fencing).
//
// # The control
//
// In each run there is one more name, whose lock never asks whether it still holds: the lock that
// people write by hand. If the same judge does not catch that lock under the same faults, the run
// proves nothing, and says so.
//
// # Adapters
//
// The lock under test may be another program's: an adapter, which a worker starts for each name and
// which speaks the protocol of interop (adapter.go). It is in the worker's process group, since a
// fault means both: a pause that stopped the worker alone would leave the lock's renewal running.
//
// # What is left behind
//
// Workers release what they hold and end when their standard input does, so also if the coordinator
// is killed; on Linux the kernel then kills those that are stopped. What a killed worker held
// expires as its store promises.
package torture
