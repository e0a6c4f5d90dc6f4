// Package spawn runs this program's binary as one of the two small processes beside a command: the
// guardian and the launcher. Between fork and exec Go runs no code of ours, and so both are
// processes that begin anew: a command starts some milliseconds later than by itself.
//
// They run in this package's init, so before the packages of the store clients set themselves up,
// and the command waits for the launcher. The alternative, a call at the start of main, also had to
// be repeated in every test binary. So this package must import almost nothing: its imports are set
// up before it.
package spawn

// Guard and Launch make a process of this binary a guardian or a launcher, as its first argument.
// They are not verbs: users do not need them.
const (
	Guard  = "__guard-group"
	Launch = "__launch"
)

// The descriptors that a launcher and a guardian inherit beside, or instead of, the standard files.
const (
	// Lifeline is a pipe from hasp to the guardian; the launcher has its writing end. It carries
	// numbers of four bytes: the group to guard, or 0 when there is nothing to guard any more.
	Lifeline = 3
	// Failure is where a launcher writes the number of the error, in four bytes, if the command
	// cannot be executed. It closes when the command is executed.
	Failure = 4
)
