package etcdlock

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// lines are the connections of a client that hasp has made. gRPC finds out by its own
// pings that a connection has died silently, or that a member hangs behind one that
// lives; but etcd's servers allow one ping in ten seconds, and with the time-out that is
// longer than many a TTL. Until then every third call to a cluster of three would go there
// and hang. So a call that got no answer in its time has the connections closed that have
// been silent all the while. A closed connection is the one thing that always is safe:
// gRPC makes another, to this member if it answers, and the outcome of what was under way
// is unknown either way.
type lines struct {
	mu   sync.Mutex
	open map[*line]bool
}

type line struct {
	net.Conn
	all   *lines
	heard atomic.Int64 // when the last bytes came, in nanoseconds since start
}

// start is what heard counts from, on the monotonic clock.
var start = time.Now()

func (ls *lines) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &line{Conn: conn, all: ls}
	l.heard.Store(int64(time.Since(start)))
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.open == nil {
		ls.open = map[*line]bool{}
	}
	ls.open[l] = true
	return l, nil
}

// leastSilence is too short a time to conclude anything from: the last attempts before the
// end of trust are that short.
const leastSilence = 300 * time.Millisecond

// suspect closes the connections on which nothing has come since then. On nil it does
// nothing: the client is the user's.
func (ls *lines) suspect(since time.Time) {
	if ls == nil || time.Since(since) < leastSilence {
		return
	}
	limit := int64(since.Sub(start))
	var silent []*line
	ls.mu.Lock()
	for l := range ls.open {
		if l.heard.Load() < limit {
			silent = append(silent, l)
		}
	}
	ls.mu.Unlock()
	for _, l := range silent {
		_ = l.Close() // it is given up, whatever this says
	}
}

func (l *line) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		l.heard.Store(int64(time.Since(start)))
	}
	return n, err
}

func (l *line) Close() error {
	l.all.mu.Lock()
	delete(l.all.open, l)
	l.all.mu.Unlock()
	return l.Conn.Close()
}
