package fstype

import "golang.org/x/sys/unix"

func fsName(st *unix.Statfs_t) (string, uint64) {
	return unix.ByteSliceToString(st.Fstypename[:]), uint64(st.Flags)
}

func fsSpace(st *unix.Statfs_t) int64  { return int64(st.Bavail) * int64(st.Bsize) }
func fsInodes(st *unix.Statfs_t) int64 { return int64(st.Ffree) }
