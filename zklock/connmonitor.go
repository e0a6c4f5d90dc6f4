package zklock

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// connMonitor is a connection to a server as the client library uses it. It reads along (and
// ahead), and keeps the last zxid in the library's place (below). Three things that the library
// knows and does not report are in the headers of the frames that pass here, and each would
// otherwise cost a round trip or a guess:
//
//   - the session timeout that the server granted, which is the TTL;
//   - the zxid in the answer to a create. It is the czxid of the new node, our fencing
//     token; the library drops it, and asking for it is a request more;
//   - the moment at which a create has been handed to the network. A request made after
//     it is behind the create in the server's queue, so getChildren can be pipelined behind it.
//
// The frames are those of ZooKeeper's protocol, which is the same in all versions since 3.0.
//
// The last zxid of an answer tells a server two things on a new connection: how far it must be
// itself to continue the session, and which events are new to us when watches are set again. For
// the second the library reads the number while answers on the new connection already write it.
// That is a data race, which programs built with -race report, and it may push the number beyond
// changes that we have not been told of. So no answer has a zxid when the library gets it, and the
// requests get ours: the number as it was when their connection began.
type connMonitor struct {
	net.Conn
	conn     *conn
	in       *bufio.Reader     // of Conn: the library reads twice for each answer, and so enters the kernel once for many
	began    bootclock.Instant // before the first request
	answerBy time.Time         // the server's first answer must be here by then
	seen     int64             // the last zxid of the connections before

	left              int // bytes of the present answer that the library has still to read
	requests, answers int // that have passed

	closed chan struct{} // closed when the server has answered that the session is closed
	broken chan struct{} // closed when a read has failed, which only a new connection would cure
	failed sync.Once     // of broken

	mu      sync.Mutex
	pending map[int32]*pendingCreate // sent and not answered, by xid
	closing map[int32]bool           // the same for the request to close the session
}

// pendingCreate is a create whose request and answer the monitor looks for.
type pendingCreate struct {
	sent chan struct{} // closed when the request is on its way
	once sync.Once
	zxid atomic.Int64 // of the answer; 0 before
}

func newConnMonitor(c net.Conn, owner *conn, answerBy time.Time) *connMonitor {
	return &connMonitor{
		Conn: c, conn: owner, in: bufio.NewReader(c), began: bootclock.Now(), answerBy: answerBy, seen: owner.lastZxid.Load(),
		closed: make(chan struct{}), broken: make(chan struct{}), pending: map[int32]*pendingCreate{}, closing: map[int32]bool{},
	}
}

// The requests that the monitor knows.
const (
	opCreate          = 1
	opCreateContainer = 19
	opSetWatches      = 101
	opClose           = -11
)

// errPieces would be of another version of the library: this one writes each request at once.
var errPieces = errors.New("the client library did not write one whole request")

func (m *connMonitor) Write(p []byte) (int, error) {
	if len(p) < 12 || len(p)-4 != int(binary.BigEndian.Uint32(p)) {
		return 0, errPieces
	}
	// Before the bytes leave: what is requested from now on is behind them anyhow, and the
	// goroutine that waits for this may start while the kernel is at work.
	return m.Conn.Write(m.outgoing(p))
}

// outgoing looks at a request, after its length: xid, type, and for a create the path. It returns
// what is to be sent.
func (m *connMonitor) outgoing(p []byte) []byte {
	if m.requests++; m.requests == 1 { // asks for a session: the protocol's version, the last zxid
		if m.conn.lost == nil {
			// Nothing lives in this session, which is not renewed, and what is read in it has the
			// server catch up first: one that is behind will do. With our zxid those of a store
			// that was rebuilt refuse the connection before they look for the session, for as long
			// as they have not written as much, and never say that it is gone. The library's own is
			// 0.
			return p
		}
		return m.withSeen(p, 8)
	}
	xid := int32(binary.BigEndian.Uint32(p[4:]))
	switch int32(binary.BigEndian.Uint32(p[8:])) {
	case opClose:
		m.mu.Lock()
		m.closing[xid] = true
		m.mu.Unlock()
	case opSetWatches:
		return m.withSeen(p, 12)
	case opCreate, opCreateContainer:
		m.outgoingCreate(xid, p[12:])
	}
	return p
}

// withSeen is a copy of a request, which is the library's, with our zxid.
func (m *connMonitor) withSeen(p []byte, at int) []byte {
	if len(p) < at+8 {
		return p
	}
	p = bytes.Clone(p)
	binary.BigEndian.PutUint64(p[at:], uint64(m.seen))
	return p
}

// outgoingCreate looks whether a create, from its path on, is one that somebody waits for.
func (m *connMonitor) outgoingCreate(xid int32, b []byte) {
	if len(b) < 4 {
		return
	}
	n := int(int32(binary.BigEndian.Uint32(b)))
	if n < 0 || n > len(b)-4 {
		return
	}
	found, ok := m.conn.pending.Load(string(b[4 : 4+n]))
	if !ok {
		return
	}
	f := found.(*pendingCreate)
	m.mu.Lock()
	m.pending[xid] = f
	m.mu.Unlock()
	f.once.Do(func() { close(f.sent) })
}

// Read gives the library at most what is left of one answer, whose head has been looked at.
func (m *connMonitor) Read(p []byte) (n int, err error) {
	if m.left == 0 {
		err = m.next()
	}
	if err == nil {
		n, err = m.in.Read(p[:min(len(p), m.left)])
		if m.left -= n; m.left == 0 && n > 0 {
			m.answers++
		}
	}
	if err != nil {
		m.failed.Do(func() { close(m.broken) })
	}
	return n, err
}

// next waits for an answer and looks at its head: before the library gets it, so that a goroutine
// that it wakes finds what the head says.
func (m *connMonitor) next() error {
	need := 16 // the length, xid and zxid; no answer is shorter
	if m.answers == 0 {
		need = 12 // the length, the protocol's version, the session timeout
	}
	head, err := m.in.Peek(need)
	if err != nil {
		return err
	}
	length := int(int32(binary.BigEndian.Uint32(head)))
	if length < need-4 {
		return fmt.Errorf("an answer of %d bytes: this is not ZooKeeper's protocol", length)
	}
	m.left = 4 + length
	if m.answers == 0 {
		m.conn.grant(m.began.At, time.Duration(binary.BigEndian.Uint32(head[8:]))*time.Millisecond)
	} else {
		m.incoming(head)
	}
	return nil
}

// incoming looks at the head of an answer, and takes the zxid out of it. Events and answers to
// pings have a negative xid, and their zxids are not those of answers.
func (m *connMonitor) incoming(head []byte) {
	xid, zxid := int32(binary.BigEndian.Uint32(head[4:])), int64(binary.BigEndian.Uint64(head[8:]))
	if xid < 0 {
		return
	}
	binary.BigEndian.PutUint64(head[8:], 0)
	if zxid > 0 {
		m.conn.lastZxid.Store(zxid)
	}
	m.mu.Lock()
	f, over := m.pending[xid], m.closing[xid]
	delete(m.pending, xid)
	delete(m.closing, xid)
	m.mu.Unlock()
	if over {
		close(m.closed)
	}
	if f != nil {
		f.zxid.Store(zxid)
	}
}

// SetReadDeadline bounds the wait for the server's first answer more tightly than the
// library does: nearly seven session timeouts, during which no other server is tried.
func (m *connMonitor) SetReadDeadline(at time.Time) error {
	if m.answers == 0 && (at.IsZero() || at.After(m.answerBy)) {
		at = m.answerBy
	}
	return m.Conn.SetReadDeadline(at)
}
