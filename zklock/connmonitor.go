package zklock

import (
	"bufio"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// connMonitor is a connection to a server as the client library uses it. It reads along (and ahead)
// and changes nothing, except that it leaves out needless pings. Four things that the library knows and does not report are in the headers of
// the frames that pass here, and each would otherwise cost a round trip or a guess:
//
//   - the session timeout that the server granted, which is the TTL;
//   - the zxid in the answer to a create. It is the czxid of the new node, our fencing
//     token; the library drops it, and asking for it is a request more;
//   - the moment at which a create has been handed to the network. A request made after
//     it is behind the create in the server's queue, so getChildren can be pipelined behind it;
//   - the moment, on a new connection, at which it sets its watches again (resumeWithin).
//
// The frames are those of ZooKeeper's protocol, which is the same in all versions since
// 3.0. Nothing depends on how the library cuts them into writes and reads.
type connMonitor struct {
	net.Conn
	conn     *conn
	in       *bufio.Reader // of Conn: the library reads twice for each answer, and so enters the kernel once for many
	began    time.Time     // before the first request
	answerBy time.Time     // the server's first answer must be here by then

	down, up          frames
	requests, answers int       // frames that have passed
	lastSent          time.Time // of any of them; by the one goroutine that writes

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
		Conn: c, conn: owner, in: bufio.NewReader(c), began: time.Now(), answerBy: answerBy,
		closed: make(chan struct{}), broken: make(chan struct{}), pending: map[int32]*pendingCreate{}, closing: map[int32]bool{},
		down: frames{keep: 24}, up: frames{keep: 8 << 10},
	}
}

// The requests that the monitor knows.
const (
	opCreate          = 1
	opPing            = 11
	opCreateContainer = 19
	opSetWatches      = 101
	opClose           = -11

	xidPing = -2
)

func (m *connMonitor) Write(p []byte) (int, error) {
	if m.needless(p) {
		return len(p), nil
	}
	m.lastSent = time.Now()
	// Before the bytes leave: what is requested from now on is behind them anyhow, and the
	// goroutine that waits for this may start while the kernel is at work.
	m.up.feed(p, m.outgoing)
	return m.Conn.Write(p)
}

// needless reports whether p is a ping that tells the server nothing: a request has left not long
// ago. The library sends a ping every third of the session timeout beside all other requests, and
// renewals leave every quarter of it.
//
// The library gives up a connection on which nothing is read for two thirds of the timeout. The
// next ping comes a third of it after this one, and needs time to be answered: so a request
// within the last third is not enough; within the last quarter it is, and leaves a twelfth. It does not
// come to that while the session is renewed. A conn without renewals keeps all its pings.
func (m *connMonitor) needless(p []byte) bool {
	return m.conn.lost != nil && m.up.have == 0 && len(p) == 12 &&
		int32(binary.BigEndian.Uint32(p[4:])) == xidPing && binary.BigEndian.Uint32(p[8:]) == opPing &&
		time.Since(m.lastSent) < m.conn.timeout()/4
}

// outgoing looks at a request: xid, type, and for a create the path.
func (m *connMonitor) outgoing(body []byte) {
	if m.requests++; m.requests == 1 || len(body) < 8 { // the first asks for a session
		return
	}
	xid := int32(binary.BigEndian.Uint32(body))
	switch int32(binary.BigEndian.Uint32(body[4:])) {
	case opClose:
		m.mu.Lock()
		m.closing[xid] = true
		m.mu.Unlock()
		return
	case opSetWatches:
		m.conn.resumed(m)
		return
	case opCreate, opCreateContainer:
	default:
		return
	}
	if len(body) < 12 {
		return
	}
	n := int(binary.BigEndian.Uint32(body[8:]))
	if n < 0 || n > len(body)-12 {
		return
	}
	f := m.conn.pendingCreateOf(string(body[12 : 12+n]))
	if f == nil {
		return
	}
	m.mu.Lock()
	m.pending[xid] = f
	m.mu.Unlock()
	f.once.Do(func() { close(f.sent) })
}

func (m *connMonitor) Read(p []byte) (int, error) {
	n, err := m.in.Read(p)
	// Before the library gets the bytes, so that a goroutine that it wakes finds what they say.
	m.down.feed(p[:n], m.incoming)
	if err != nil {
		m.failed.Do(func() { close(m.broken) })
	}
	return n, err
}

// incoming looks at an answer: xid and zxid. The first one brings the session timeout.
func (m *connMonitor) incoming(body []byte) {
	if m.answers++; m.answers == 1 {
		if len(body) >= 8 {
			m.conn.grant(m.began, time.Duration(binary.BigEndian.Uint32(body[4:]))*time.Millisecond)
		}
		return
	}
	if len(body) < 12 {
		return
	}
	xid := int32(binary.BigEndian.Uint32(body))
	m.mu.Lock()
	f, over := m.pending[xid], m.closing[xid]
	delete(m.pending, xid)
	delete(m.closing, xid)
	m.mu.Unlock()
	if over {
		close(m.closed)
	}
	if f != nil {
		f.zxid.Store(int64(binary.BigEndian.Uint64(body[4:])))
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

// frames cuts a stream into frames: four bytes of length, then as many bytes. Of a frame
// that arrives in pieces it keeps the first bytes only.
type frames struct {
	keep int

	length [4]byte
	have   int // bytes of length that are here
	left   int // bytes of the frame still to come
	body   []byte
}

func (f *frames) feed(p []byte, frame func(body []byte)) {
	for len(p) > 0 {
		if f.have < len(f.length) {
			n := copy(f.length[f.have:], p)
			f.have += n
			p = p[n:]
			f.left = int(binary.BigEndian.Uint32(f.length[:]))
			f.body = f.body[:0]
			continue
		}
		n := min(f.left, len(p))
		switch {
		case n == f.left && len(f.body) == 0:
			frame(p[:n]) // in one piece, as usual
		default:
			f.body = append(f.body, p[:min(n, f.keep-len(f.body))]...)
			if n == f.left {
				frame(f.body)
			}
		}
		f.left -= n
		p = p[n:]
		if f.left == 0 {
			f.have = 0
		}
	}
}
