package pglock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The sessions of a process that have the same TTL, at the same server, listen on the connection of one of
// them: the server then wakes one of its processes for all of them. It is the connection of the first that
// has to wait. Its session's renewals prove that notifications can arrive, as often as the other sessions'
// own would. When it was down or its session is closed, all that wait ask; if it is closed, the first that still waits
// has its own connection take over.

// listener is the part of a session in the connection that listens for it.
type listener struct {
	channel string
	heard   func(payload string)
	quiet   func() bool // nothing has waited for a while: then it sets stands to 0
	lost    func()      // the connection was down, or its session is closed

	stands atomic.Int64 // the number of the LISTEN that is in force, 0 if none is: see session.hears
}

// listens numbers each LISTEN of the process.
var listens atomic.Int64

// shared are the connections that listen for others.
var shared = struct {
	sync.Mutex
	by map[sharing]*sessionConn
}{by: map[sharing]*sessionConn{}}

// sharing is equal for the sessions that share a connection.
type sharing struct {
	login any
	ttl   time.Duration
}

// sharedConn returns the connection to listen on, which is own if there is no other. One whose session
// was closed is replaced here; until then it costs a place in the map.
func sharedConn(own *sessionConn, ttl time.Duration) *sessionConn {
	key := sharing{own.to.login(), ttl}
	shared.Lock()
	defer shared.Unlock()
	l := shared.by[key]
	if l == nil || l.done.Err() != nil {
		l = own
		shared.by[key] = l
		context.AfterFunc(l.done, func() { unshare(key, l) })
	}
	return l
}

func unshare(key sharing, l *sessionConn) {
	shared.Lock()
	defer shared.Unlock()
	if shared.by[key] == l {
		delete(shared.by, key)
	}
}

// listen has a session listen on this connection. The owner calls it and the functions below:
// so one comes after the other.
func (l *sessionConn) listen(ctx context.Context, r runner, h *listener) error {
	if h.stands.Load() != 0 { // another of its waiters has asked for it
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	err := r.script(ctx, "LISTEN "+h.channel)
	if err == nil {
		if len(l.heard) == 0 {
			l.look = time.Now().Add(listenFor)
		}
		l.heard[h.channel] = h
		h.stands.Store(listens.Add(1))
	}
	return err
}

// unlisten ends the LISTEN of sessions in which nothing waits any more. It looks every listenFor. An entry
// that comes to wait from now on finds that no LISTEN stands, and asks for one.
func (l *sessionConn) unlisten(r runner) error {
	if len(l.heard) == 0 || time.Now().Before(l.look) {
		return nil
	}
	l.look = time.Now().Add(listenFor)
	for channel, h := range l.heard {
		if !h.quiet() {
			continue
		}
		delete(l.heard, channel)
		ctx, cancel := context.WithTimeout(l.done, l.patience)
		err := r.script(ctx, "UNLISTEN "+channel)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// deaf counts each LISTEN as ended: the connection is down.
func (l *sessionConn) deaf() {
	for _, h := range l.heard {
		h.stands.Store(0)
	}
}

// tell has all that wait ask, once the connection is up again, or never will be: what was notified meanwhile
// is lost.
func (l *sessionConn) tell() {
	for _, h := range l.heard {
		h.lost()
	}
	clear(l.heard)
}
