//go:build !unix

package redisconn

import "net"

const findsStale = false

func readable(net.Conn) bool { return false }
