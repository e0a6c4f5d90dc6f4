// Command bench measures hasp beside the least that a lock on the same store can cost (the
// floor) and beside the libraries that people use today, in one run, on real servers that it
// starts itself, and writes tables, figures and charts.
//
// Only ratios within one repetition mean anything: the contestants take turns, in another
// order each time, and a ratio is printed only if the repetitions agree on it.
//
// It is a module of its own, so that no program that uses hasp has the peers in its graph.
package main
