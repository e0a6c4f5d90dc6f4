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
//
// A guardian's other argument is the number of its group.
//
// Those of a launcher are the number of a descriptor, and the path and the arguments of the
// command. The descriptor is a connection to hasp, which sends a byte when the guardian has started.
// The launcher sends the error's number, in digits, if the command cannot be executed. The
// connection closes when the command is executed.
const (
	Guard  = "__guard-group"
	Launch = "__launch"
)
