// Package fstype tells what kind of file system a file is on, and whether it is local to this
// machine: if it is not, flock depends on mount options at best, and does not exclude processes
// of other machines.
package fstype

// Kind is how far a file system is this machine's own.
type Kind int

// The kinds. Unknown is a file system that is not on the list: it is more often new than networked.
// FUSE claims to be local even if a network is behind it.
const (
	Local Kind = iota
	Unknown
	FUSE
	Networked
)

// Info describes a file system.
type Info struct {
	Name   string
	Kind   Kind
	Space  int64 // bytes free for us
	Inodes int64 // free; -1 where they are made as needed
}
