// Package spawn is what this program's own binary does when it is started as one of the two
// small processes beside a command: the guardian and the launcher. Package group starts them.
//
// They run in this package's init, so before the packages of the store clients set
// themselves up: that takes 3 ms instead of 9, and the command waits for the launcher. The
// road not taken, a call at the head of main, also had to be repeated in every test binary.
// This package must therefore stay a leaf: what it imports is set up before it.
package spawn

// Guard and Launch make a process of this binary a guardian or a launcher, as its first
// argument. They are no verbs: people have no use for them.
const (
	Guard  = "__guard-group"
	Launch = "__launch"
)

// What a launcher and a guardian inherit beside, or instead of, the standard files.
const (
	// Lifeline is a pipe from us to the guardian, in the launcher its writing end. On it are
	// numbers in decimal, a line each: the group to guard, or Dismissed.
	Lifeline = 3
	// Failure is where a launcher writes the number of the error, in decimal, if the command
	// cannot be executed. It closes when the command is.
	Failure = 4
)

// Dismissed on the lifeline tells the guardian that there is nothing to guard any more.
const Dismissed = 0
