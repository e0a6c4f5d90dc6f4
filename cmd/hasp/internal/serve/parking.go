package serve

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

// idle is how long a connection without a request stays open.
const idle = 2 * time.Minute

// parking has the connections of HTTP/1.1 whose requests wait. net/http keeps 20 KB for each request under way: buffers, and the stacks of
// two goroutines that have done all that came before. A parked one has two new goroutines with the smallest stack: one waits for the answer, and
// the other reads, so that it notices when the client goes away. It stays parked until the client's next request begins, and then net/http has it
// again, by a listener: no connection is lost by a wait.
//
// Rejected: to close it after the answer, which costs each client a connection for each wait; and HTTP/1.1 by our own code, which net/http has
// proven. HTTP/2 cannot be parked: its connections have other requests.
type parking struct {
	server *http.Server // nil: none is parked

	mu     sync.Mutex
	all    map[*parked]struct{}
	closed bool

	serving sync.Once
	again   chan net.Conn // to net/http
	over    chan struct{} // closed when that takes none
}

// open has connections of a server parked.
func (p *parking) open(h *http.Server) {
	p.server, p.all, p.again, p.over = h, map[*parked]struct{}{}, make(chan net.Conn), make(chan struct{})
	h.RegisterOnShutdown(p.close)
}

// close closes the connections without a request, and the others after the answer.
func (p *parking) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for k := range p.all {
		k.mu.Lock()
		k.last = true
		if k.waits == nil {
			_ = k.conn.Close() // its reader forgets it
		}
		k.mu.Unlock()
	}
}

// parked is one connection. Who is the second to be done of the answer and the reader goes on with it.
type parked struct {
	*parking
	conn net.Conn

	mu    sync.Mutex
	waits waiting // nil: it is answered
	ready bool    // the client has sent more, or has gone
	first []byte  // what it has sent
	last  bool    // no request follows
	one   [1]byte
}

// park takes a request that waits over from net/http, and reports whether it could.
func (s *Server) park(r *reply, q *http.Request) bool {
	if s.parking.server == nil || q.ProtoMinor == 0 || q.Method == http.MethodHead {
		return false
	}
	conn, buffers, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err != nil {
		return false
	}
	k := &parked{parking: &s.parking, conn: conn, waits: r.waits, last: q.Close}
	if n := buffers.Reader.Buffered(); n > 0 { // a client that does not wait for answers
		more, _ := buffers.Reader.Peek(n) // it has them
		k.first, k.ready = bytes.Clone(more), true
	}
	r.waits.detach() // before the request's context ends with the handler
	s.parking.mu.Lock()
	k.last = k.last || s.parking.closed
	s.parking.all[k] = struct{}{}
	s.parking.mu.Unlock()
	if !k.ready {
		go k.read()
	}
	s.background.Add(1)
	go k.answer(s, r)
	return true
}

// answer waits, and sends the answer.
func (k *parked) answer(s *Server, r *reply) {
	defer s.background.Done()
	defer func() { // as net/http does: a fault costs one connection, not the locks of all sessions
		if fault := recover(); fault != nil {
			s.o.Log.Error("panic", slog.Any("fault", fault), slog.String("path", loggable(r.path)), slog.String("stack", string(debug.Stack())))
			k.send(&rawAnswer{status: http.StatusInternalServerError})
		}
	}()
	a := &rawAnswer{}
	r.ResponseWriter = a
	for !r.waits.wait(longestWait) {
	}
	r.result()
	k.send(a)
	s.note(r)
}

// read waits for what the client does next.
func (k *parked) read() {
	n, err := k.conn.Read(k.one[:])
	k.mu.Lock()
	k.ready = true
	if n > 0 {
		k.first = append(k.first, k.one[0])
	}
	k.last = k.last || err != nil
	waits := k.waits
	k.mu.Unlock()
	switch {
	case waits == nil:
		k.leave()
	case err != nil:
		waits.end(errors.New("the client has gone"))
	}
}

// send writes the answer.
func (k *parked) send(a *rawAnswer) {
	k.mu.Lock()
	last := k.last
	k.mu.Unlock()
	err := a.write(k.conn, last)
	k.mu.Lock()
	k.waits, k.last = nil, k.last || err != nil
	switch {
	case k.ready:
		k.mu.Unlock()
		k.leave()
		return
	case k.last:
		_ = k.conn.Close() // the reader notices
	default:
		_ = k.conn.SetReadDeadline(time.Now().Add(idle))
	}
	k.mu.Unlock()
}

// leave ends the parking, by the second of the two goroutines.
func (k *parked) leave() {
	p := k.parking
	p.mu.Lock()
	delete(p.all, k) // from here on close does not find it, and k is this goroutine's alone
	p.mu.Unlock()
	if k.last {
		_ = k.conn.Close()
		return
	}
	p.serving.Do(func() { go func() { _ = p.server.Serve(p) }() }) // until Shutdown or Close
	select {
	case p.again <- returned(k.conn, k.first):
	case <-p.over:
		_ = k.conn.Close()
	}
}

// Accept implements net.Listener.
func (p *parking) Accept() (net.Conn, error) {
	select {
	case c := <-p.again:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *parking) Close() error {
	close(p.over) // http.Server closes each listener once
	return nil
}

// Addr implements net.Listener.
func (p *parking) Addr() net.Addr { return nil } // of no use to a handler

// unread is a connection of which the first bytes have been read.
type unread struct {
	net.Conn
	first []byte
}

func (c *unread) Read(b []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}

// CloseWrite is called by net/http where an error is answered before the request was read.
func (c *unread) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// unreadTLS has what net/http looks for to tell a connection with TLS.
type unreadTLS struct{ *unread }

func (c unreadTLS) ConnectionState() tls.ConnectionState {
	return c.Conn.(*tls.Conn).ConnectionState()
}

// returned is a connection with the bytes that were read of it before all that it has. One that was parked before is wrapped once.
func returned(conn net.Conn, first []byte) net.Conn {
	switch c := conn.(type) {
	case *unread:
		c.first = append(first, c.first...)
		return c
	case unreadTLS:
		c.first = append(first, c.first...)
		return c
	case *tls.Conn:
		return unreadTLS{&unread{conn, first}}
	}
	return &unread{conn, first}
}

// rawAnswer is an answer that is sent without net/http.
type rawAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *rawAnswer) Header() http.Header {
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

func (a *rawAnswer) WriteHeader(status int)      { a.status = status }
func (a *rawAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a *rawAnswer) write(to net.Conn, last bool) error {
	a.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
	r := http.Response{
		StatusCode: a.status, ProtoMajor: 1, ProtoMinor: 1, Header: a.header, ContentLength: int64(a.body.Len()), Body: io.NopCloser(&a.body), Close: last,
	}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		return err
	}
	if err := to.SetWriteDeadline(time.Now().Add(writeSlack)); err != nil {
		return err
	}
	if _, err := to.Write(text.Bytes()); err != nil {
		return err
	}
	return to.SetWriteDeadline(time.Time{})
}
