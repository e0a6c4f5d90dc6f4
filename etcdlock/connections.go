package etcdlock

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// connections are those of a client that hasp has made. gRPC finds out by its own
// pings that a connection has died silently, or that a member hangs behind one that
// lives; but etcd's servers allow one ping in ten seconds, and with the time-out that is
// longer than many a TTL. Until then every third call to a cluster of three would go there
// and hang. So a call that got no answer in its time has the connections closed that have
// been silent all the while. A closed connection is the one thing that always is safe:
// gRPC makes another, to this member if it answers, and the outcome of what was under way
// is unknown either way.
type connections struct {
	mu   sync.Mutex
	open map[*connection]bool
}

type connection struct {
	net.Conn
	all      *connections
	lastRead atomic.Int64 // when the last bytes came, in nanoseconds since start
}

// start is the zero of lastRead, on the monotonic clock.
var start = time.Now()

func (cs *connections) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &connection{Conn: conn, all: cs}
	l.lastRead.Store(int64(time.Since(start)))
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.open == nil {
		cs.open = map[*connection]bool{}
	}
	cs.open[l] = true
	return l, nil
}

// leastSilence is too short a time to conclude anything from: the last attempts before the
// end of trust are that short.
const leastSilence = 300 * time.Millisecond

// closeSilent closes the connections on which nothing has come since then. On nil it does
// nothing: the client is the user's.
func (cs *connections) closeSilent(since time.Time) {
	if cs == nil || time.Since(since) < leastSilence {
		return
	}
	limit := int64(since.Sub(start))
	var silent []*connection
	cs.mu.Lock()
	for l := range cs.open {
		if l.lastRead.Load() < limit {
			silent = append(silent, l)
		}
	}
	cs.mu.Unlock()
	for _, l := range silent {
		_ = l.Close() // it is not used again, also after an error
	}
}

func (l *connection) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		l.lastRead.Store(int64(time.Since(start)))
	}
	return n, err
}

func (l *connection) Close() error {
	l.all.mu.Lock()
	delete(l.all.open, l)
	l.all.mu.Unlock()
	return l.Conn.Close()
}
