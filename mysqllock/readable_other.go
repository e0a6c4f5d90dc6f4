//go:build !unix

package mysqllock

// readable is for a system where RawConn.Read calls it when the socket can be read from, also if it
// could be before: at first it says no.
func readable() func(fd uintptr) bool {
	asked := false
	return func(uintptr) bool {
		was := asked
		asked = true
		return was
	}
}
