// Package filelock is hasp's embedded store: a directory on a local disk, for the
// processes of one machine. No server, no TTL, no renewals.
//
//	c, err := hasp.Open(ctx, "file:///var/lib/myapp/locks")
//
// Locks are first come, first served across processes, with fencing tokens, shared locks,
// semaphores and published values: everything in driver.Traits. An entry lasts exactly as
// long as its process (driver.ProcessBound): the kernel tells the others of its death
// within milliseconds, and nothing but its end takes a lock away. A stopped process, or a
// suspended machine, keeps its locks.
//
// # Caveats
//
// The store needs its own directory, on a local file system; network file systems
// are refused, and FUSE is unless Options.AllowFUSE says that it is local.
//
// A child that is forked without exec (from C code, say) inherits the proof of life, and
// keeps its parent's locks alive after the parent's death. Processes started by os/exec do
// not.
//
// Files must not be removed while processes use the store. Removing single ones is found
// out and refused; removing or renaming the whole directory is told to the holders within
// seconds, and until then a process that makes a new store in its place can hold the same
// locks. The tokens of the new store are greater, so that a fenced resource is safe.
//
// docs/internals/file.md describes the format and the reasons.
package filelock
