package serve

import (
	"bytes"
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
// two goroutines that have done all that came before. A parked one has none: a new goroutine answers when the store tells of news, and
// another reads when there is something to read, or the client has gone; where either cannot be told, the goroutine waits from the beginning. It stays parked until the client's next request begins, and then
// net/http has it again, by a listener: no connection is lost by a wait.
//
// Rejected: to close it after the answer, which costs each client a connection for each wait; and HTTP/1.1 by our own code, which net/http has
// proven. HTTP/2 cannot be parked: its connections have other requests.
type parking struct {
	server *http.Server // nil: none is parked

	mu     sync.Mutex
	all    map[uint64]*parked
	number uint64 // of the last one
	closed bool

	watching  sync.Once
	readiness *readiness // nil: none

	serving sync.Once
	again   chan net.Conn // to net/http
	over    chan struct{} // closed when that takes none
}

// open has connections of a server parked.
func (p *parking) open(h *http.Server) {
	p.server, p.all, p.again, p.over = h, map[uint64]*parked{}, make(chan net.Conn), make(chan struct{})
	h.RegisterOnShutdown(p.close)
}

// close closes the connections without a request, and the others after the answer.
func (p *parking) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, k := range p.all {
		k.mu.Lock()
		k.last = true
		if k.waits == nil {
			_ = k.conn.Close() // its reader forgets it
		}
		k.mu.Unlock()
	}
}

// forget ends the watching, when nothing waits any more.
func (p *parking) forget() {
	p.watching.Do(func() {}) // and none begins
	if p.readiness != nil {
		p.readiness.close()
	}
}

// parked is one connection. Who is the second to be done of the answer and the reader goes on with it.
type parked struct {
	*parking
	number uint64
	conn   net.Conn

	mu    sync.Mutex
	waits waiting // nil: it is answered
	reads bool    // there is, or was, a reader
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
		k.first, k.ready, k.reads = bytes.Clone(more), true, true
	}
	r.waits.detach() // before the request's context ends with the handler
	s.parking.mu.Lock()
	k.last = k.last || s.parking.closed
	s.parking.number++
	k.number = s.parking.number
	s.parking.all[k.number] = k
	s.parking.mu.Unlock()
	if !k.ready && !s.parking.watch(k) {
		k.startReading()
	}
	r.ResponseWriter = nil // net/http's can go
	s.background.Add(1)
	if asleep, able := k.sleep(s, r); !asleep {
		go k.answer(s, r, able)
	}
	return true
}

// sleep returns asleep if another goroutine has everything from here on, or will have it.
func (k *parked) sleep(s *Server, r *reply) (asleep, able bool) {
	return r.waits.sleep(func() { k.answer(s, r, true) })
}

// answer waits, or sleeps where that is able to, and sends the answer.
func (k *parked) answer(s *Server, r *reply, able bool) {
	asleep := false
	defer func() { // as net/http does: a fault costs one connection, not the locks of all sessions
		if fault := recover(); fault != nil {
			s.o.Log.Error("panic", slog.Any("fault", fault), slog.String("path", loggable(r.path)), slog.String("stack", string(debug.Stack())))
			k.send(&rawAnswer{status: http.StatusInternalServerError})
		}
		if !asleep {
			s.background.Done()
		}
	}()
	for !r.waits.wait(patience(able)) {
		if asleep, able = k.sleep(s, r); asleep {
			return
		}
	}
	a := &rawAnswer{}
	r.ResponseWriter = a
	r.result()
	k.send(a)
	s.note(r)
}

// patience is how long to wait before the next sleep.
func patience(able bool) time.Duration {
	if able {
		return inPlace
	}
	return longestWait
}

// watch has a reader started when there is something to read; false: it cannot be told.
func (p *parking) watch(k *parked) bool {
	p.watching.Do(func() {
		// Without it each connection has its reader at once.
		p.readiness, _ = newReadiness(func(number uint64) {
			p.mu.Lock()
			k := p.all[number]
			p.mu.Unlock()
			if k != nil {
				k.startReading()
			}
		})
	})
	s := socket(k.conn)
	return s != nil && p.readiness != nil && p.readiness.watch(s, k.number)
}

// startReading starts the one reader, if there was none. When an answer has been sent there is always one, which ends it when
// the client takes too long for its next request, or when close has closed the connection.
func (k *parked) startReading() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.startReadingLocked()
}

func (k *parked) startReadingLocked() {
	if !k.reads {
		k.reads = true
		go k.read()
	}
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
	k.startReadingLocked()
	k.mu.Unlock()
}

// leave ends the parking, by the second of the two goroutines.
func (k *parked) leave() {
	p := k.parking
	p.mu.Lock()
	delete(p.all, k.number) // from here on close does not find it, and k is this goroutine's alone
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
