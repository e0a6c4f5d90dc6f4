// Package filefence fences the replacing of a file with a fencing token. The greatest token
// seen is kept in a small file beside it, the sidecar .NAME.fence, whose flock makes comparing
// and replacing one step among all processes of the machine.
//
//	f, err := filefence.Open("/srv/report.txt", lease.Name())
//	err = f.Advance(ctx, lease.Token())
//	...
//	err = f.Replace(ctx, lease.Token(), strings.NewReader(report))
//
// `hasp fence file` is the same for scripts.
//
// # What a crash leaves
//
// The new content is written to a temporary file and synced, then the token to the sidecar and
// synced, and then the temporary file takes the name. A reader sees the old content or the new,
// whole, whatever dies when. In this order a crash leaves at worst a fence that is ahead of
// its file: older holders are refused, the newest can write again. The other order could leave
// new content with an old fence, and let an older holder overwrite it. For the same reason a
// token that somebody else has written is synced again before anything is done under it. A temporary file that a
// crash left behind, .NAME.*.tmp, may be removed at any time.
//
// # Caveats
//
// One machine, one local file system: flock on network file systems is a matter of luck, and
// they are refused. What is behind FUSE cannot be told, and is let pass on your word.
//
// The file is replaced, not written into: programs that have it open go on seeing the old
// content, hard links keep it, and of its attributes only the permission bits are carried
// over. A symbolic link is followed when the File is opened, so that all ways to a file share
// its fence.
//
// Who may write to the directory may also remove the sidecar, and keep its flock. Nobody else
// may: it is open to its owner, and to group and others only where these may write to the
// directory. So who merely reads the file, or lives on the same machine, can hold nobody up. A
// process that was stopped in its turn does; File.Wait bounds that.
package filefence
