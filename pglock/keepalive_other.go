//go:build !linux

package pglock

import "net"

// Other systems have no such limit, or by another name; there is the server's side.
func limitUnacknowledged(*net.TCPConn) error { return nil }
