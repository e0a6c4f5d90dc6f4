// Command bench measures hasp beside the least that a lock on the same store can cost (the
// floor) and beside the libraries that people use today, in one run, on real servers that it
// starts itself. It writes docs/PERFORMANCE.md for users and RESULTS.md for developers.
//
// Only ratios within one repetition mean anything: the contestants take turns, in another
// order each time, and a ratio is printed only if the repetitions agree on it.
//
// It is a separate module, so that the peers are not in the graph of programs that use hasp.
package main
