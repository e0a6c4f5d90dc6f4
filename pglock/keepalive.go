package pglock

import (
	"net"
	"time"

	"github.com/jackc/pgx/v5"
)

// silenceMost is how long a peer may send nothing before a connection of ours ends, on either side:
// Go's own keepalives take two minutes, and the kernel sends what is not acknowledged again and
// again for a quarter of an hour, without a probe. The locks of Advisory end with their
// connections, and a waiter's position; so the server's side is set as well (settings).
const silenceMost = 15 * time.Second

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 6 * time.Second, Interval: 3 * time.Second, Count: 3}

// setKeepAlive sets our side of a connection, of a pool of the user's as well.
func setKeepAlive(conn *pgx.Conn) {
	c := conn.PgConn().Conn()
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return // a socket file, or a tunnel of the user's
	}
	_ = tcp.SetKeepAliveConfig(keepAlive) // what cannot be set takes longer, and that is all
	_ = limitUnacknowledged(tcp)
}
