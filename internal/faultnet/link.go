package faultnet

import (
	"context"
	"net"
	"sync"
	"time"
)

// link is one client's connection and the one made for it to the server.
//
// Four goroutines serve it: a reader and a writer for each direction. The writers run
// until ctx ends, the readers until their socket says no more. Every way in which a
// connection can finish goes through end.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	pipes  [2]*pipe // by Direction
	pumps  sync.WaitGroup
	ctx    context.Context // ended by end, and by nothing else
	cancel context.CancelFunc

	// Guarded by proxy.mu.
	server *net.TCPConn // never nil; until the opening is delivered all its methods fail
	ended  bool
}

// ending is how a connection's sockets are treated at its end.
type ending int

const (
	byFIN ending = iota // both sides read an end of stream
	byRST               // both sides get an error
)

func newLink(p *Proxy, client *net.TCPConn) *link {
	l := &link{proxy: p, client: client, server: &net.TCPConn{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for dir := range l.pipes {
		l.pipes[dir] = newPipe(l, Direction(dir))
	}
	l.pipes[Up].queue = []parcel{{kind: opening, came: time.Now()}}
	return l
}

func (l *link) run() {
	l.pumps.Go(func() { l.pipes[Up].read(l.client) })
	l.pumps.Go(l.pipes[Up].write)
	l.pumps.Go(l.pipes[Down].write)
	l.pumps.Wait()
}

// connect delivers the opening: it dials the server and starts reading from it. A server
// that cannot be reached answers with a reset, which travels like any answer.
func (l *link) connect() {
	l.proxy.mu.Lock()
	target := l.proxy.target
	l.proxy.mu.Unlock()
	conn, err := (&net.Dialer{}).DialContext(l.ctx, "tcp", target)
	if err != nil {
		l.pipes[Up].breakOff()
		return
	}
	server := conn.(*net.TCPConn)
	l.proxy.mu.Lock()
	if l.ended {
		l.proxy.mu.Unlock()
		reset(server) // end did not see it
		return
	}
	l.server = server
	l.proxy.mu.Unlock()
	// Called by a pump, so the count cannot be at zero.
	l.pumps.Go(func() { l.pipes[Down].read(server) })
}

// receiver is the socket that a direction writes to.
func (l *link) receiver(dir Direction) *net.TCPConn {
	if dir == Down {
		return l.client
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	return l.server
}

// end finishes the connection; the first call counts.
func (l *link) end(how ending) {
	p := l.proxy
	p.mu.Lock()
	if l.ended {
		p.mu.Unlock()
		return
	}
	l.ended = true
	delete(p.links, l)
	for _, pipe := range l.pipes {
		pipe.discardLocked()
	}
	p.count(func(s *Stats) { s.Live-- })
	server := l.server
	l.cancel()
	p.mu.Unlock()

	finish(l.client, how)
	finish(server, how)
	// Report it only now, so that a waiter finds the sockets already cut.
	for _, pipe := range l.pipes {
		if pipe.losing != nil {
			close(pipe.losing.cut)
		}
	}
}

// finish ends one socket. Errors mean that the peer was faster.
func finish(s *net.TCPConn, how ending) {
	if how == byRST {
		reset(s)
		return
	}
	// Close alone would send a RST and no FIN if the socket has bytes that we have not
	// read. After the FIN a RST does no harm: the peer's next read is the end of stream.
	_ = s.CloseWrite()
	_ = s.Close()
}

// reset closes a socket with a RST: a linger time of zero throws away what is unsent.
func reset(s *net.TCPConn) {
	_ = s.SetLinger(0)
	_ = s.Close()
}
