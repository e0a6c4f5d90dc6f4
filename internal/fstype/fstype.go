// Package fstype tells what kind of file system a file is on, and whether it is this machine's
// own: where it is not, flock is at best a matter of mount options, and keeps nobody out who
// comes from another machine.
package fstype

// Kind is how far a file system is this machine's own.
type Kind int

// The kinds. Unknown is one that nobody here has heard of: it is more often new than networked.
// FUSE claims to be local whatever is behind it.
const (
	Local Kind = iota
	Unknown
	FUSE
	Networked
)

// Info is what is known of a file system.
type Info struct {
	Name   string
	Kind   Kind
	Space  int64 // bytes free for us
	Inodes int64 // free; -1 where they are made as needed
}
