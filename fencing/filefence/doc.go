// Package filefence protects the replacement of a file with a fencing token. It keeps the greatest
// token seen in a small file beside it, the sidecar .NAME.fence, whose flock makes comparing and
// replacing one atomic step among all processes of the machine.
//
//	fence, err := filefence.With(ctx, "/srv/report.txt", lease, nil)
//	...read, think...
//	err = fence.Replace(ctx, strings.NewReader(report))
//
// `hasp fence file` is the same for scripts.
//
// # What a crash leaves
//
// The new content is written to a temporary file and synced, then the token to the sidecar and
// synced, and then the temporary file takes the name. A reader sees the whole old content or the
// whole new content, after a crash at any point. In this order a crash leaves at worst a fence that
// is ahead of its file: older holders are refused, the newest can write again. The other order
// could leave new content with an old fence, and let an older holder overwrite it. For the same
// reason a token that another process has written is synced again before the first write under it.
// A temporary file that a crash left behind, .NAME.*.tmp, may be removed at any time.
//
// # Caveats
//
// One machine, one local file system: flock on network file systems is unreliable, so they are
// refused. The file system behind FUSE cannot be determined; it is accepted, and you are
// responsible.
//
// The file is replaced, not written into: programs that have it open still see the old content,
// hard links keep it, and only the permission bits of its attributes are kept. A symbolic link is
// followed by With, so that all paths to a file share its fence.
//
// A user that may write to the directory may also remove the sidecar, and keep its flock. No other
// user may: it is open to its owner, and to group and others only if these may write to the
// directory. So a user that may only read the file, or only has an account on the machine, cannot
// block the writers. A process that is stopped in its turn can; Options.Wait bounds that.
package filefence
