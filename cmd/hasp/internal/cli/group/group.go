// Package group runs one command in a separate process group and reports when the whole group is
// gone, not only its first process: what a command leaves running in the background still runs
// under its lock.
//
// A process can leave its group (setsid, setpgid: daemons, and the jobs of a shell with job
// control). Then this package only tells of it, on Linux, unless it is asked to wait for it, too.
//
// If this process is killed, so is the group: see guardian_unix.go.
package group

import "syscall"

// Event is one of [Group.Events], which come in the order in which they happened.
type Event struct {
	Kind   Kind
	Signal syscall.Signal // of Stopped
	Status Status         // of Exited
	Member Member         // of Detached
	Err    error          // of Failed and Unguarded
}

// Kind says what happened to a group.
type Kind int

const (
	// Stopped: the command was stopped, by job control or by a SIGSTOP.
	Stopped Kind = iota
	// Exited: the command itself has ended; others of its group may live.
	Exited
	// Failed: the command could not be executed. It comes instead of Exited.
	Failed
	// Unguarded: no guardian could be started. If this process is killed, all of the group but the
	// command itself lives on. The package tries again; Guarded reports success.
	Unguarded
	// Guarded: another guardian has taken the place of one that had died or was missing.
	Guarded
	// Detached: no process of the group is left, and one that has left the group is at work.
	Detached
	// Gone: nothing is left that was to be waited for. The last event.
	Gone
)

// Status is how a command ended.
type Status struct {
	Code   int            // given to exit, if Signal is 0
	Signal syscall.Signal // that killed it
}

// ExitCode is the status as a shell reports it: 128+n for signal n.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

// Member is a process of a group.
type Member struct {
	PID, UID int
	Command  string // as the kernel calls it: 15 bytes of its program's name
}
