package zklock

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// However a stream is cut, the same frames come out, their first bytes whole.
func TestFramesInPieces(t *testing.T) {
	t.Parallel()
	const keep = 16
	var stream []byte
	var want [][]byte
	for i := range 200 {
		body := make([]byte, 1+rand.N(3*keep))
		for j := range body {
			body[j] = byte(i)
		}
		stream = append(stream, frame(body)...)
		want = append(want, body)
	}
	for range 200 {
		f := frames{keep: keep}
		var got [][]byte
		for rest := stream; len(rest) > 0; {
			n := min(1+rand.N(2*keep), len(rest))
			f.feed(rest[:n], func(body []byte) { got = append(got, bytes.Clone(body)) })
			rest = rest[n:]
		}
		if len(got) != len(want) {
			t.Fatalf("%d frames, want %d", len(got), len(want))
		}
		for i := range want {
			if n := min(keep, len(want[i])); len(got[i]) < n || !bytes.Equal(got[i][:n], want[i][:n]) {
				t.Fatalf("frame %d begins with %x, want %x", i, got[i], want[i])
			}
		}
	}
}

// pipe is a connMonitor with a server behind it that the test plays.
func pipe(t *testing.T) (*connMonitor, net.Conn) {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return newConnMonitor(near, &conn{pendingCreates: map[string]*pendingCreate{}}, time.Now().Add(time.Minute)), far
}

// exchange sends bytes through the monitor in pieces and has the server answer.
func exchange(t *testing.T, p *connMonitor, server net.Conn, request, answer []byte) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		b := make([]byte, len(request))
		for n := 0; n < len(b); {
			m, err := server.Read(b[n:])
			if err != nil {
				done <- err
				return
			}
			n += m
		}
		_, err := server.Write(answer)
		done <- err
	}()
	for i := 0; i < len(request); i += 5 {
		if _, err := p.Write(request[i:min(i+5, len(request))]); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 3)
	for n := 0; n < len(answer); {
		m, err := p.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// The monitor learns the granted timeout, reports when a create is on its way, and finds the
// zxid of its answer among others.
func TestMonitor(t *testing.T) {
	t.Parallel()
	p, server := pipe(t)
	greeting := binary.BigEndian.AppendUint32(make([]byte, 4), 4321)
	exchange(t, p, server, frame(make([]byte, 44)), frame(append(greeting, make([]byte, 28)...)))
	if got := p.conn.timeout(); got != 4321*time.Millisecond {
		t.Errorf("granted %s", got)
	}

	request := func(xid, op int32, path string) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(xid))
		b = binary.BigEndian.AppendUint32(b, uint32(op))
		b = binary.BigEndian.AppendUint32(b, uint32(len(path)))
		return frame(append(append(b, path...), "data and ACL"...))
	}
	answer := func(xid int32, zxid int64) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(xid))
		b = binary.BigEndian.AppendUint64(b, uint64(zxid))
		return frame(append(b, make([]byte, 40)...))
	}
	f, other := p.conn.trackCreate("/a/mine-"), p.conn.trackCreate("/a/other-")
	exchange(t, p, server, request(7, 3, "/a/mine-"), answer(7, 70)) // an exists
	select {
	case <-f.sent:
		t.Fatal("an exists was taken for the create")
	default:
	}
	exchange(t, p, server, append(request(8, opCreate, "/a/mine-"), request(9, opCreate, "/a/else-")...),
		bytes.Join([][]byte{answer(-1, -1), answer(9, 90), answer(-2, 99), answer(8, 1<<40+5)}, nil))
	select {
	case <-f.sent:
	default:
		t.Error("the create has been sent, and its waiter was not told")
	}
	if got := f.zxid.Load(); got != 1<<40+5 {
		t.Errorf("zxid %d", got)
	}
	if other.zxid.Load() != 0 {
		t.Error("a create that was not sent has an answer")
	}
	// Malformed lengths of a path are not followed.
	exchange(t, p, server, frame([]byte{0, 0, 0, 10, 0, 0, 0, opCreate, 0xff, 0xff, 0xff, 0xff}), answer(10, 100))
	exchange(t, p, server, frame([]byte{0, 0, 0, 11, 0, 0, 0, opCreate, 0x7f, 0xff, 0xff, 0xff}), answer(11, 110))
}

// A server that accepts and says nothing is given up after the connect timeout, though the
// library would wait for nearly seven session timeouts; later reads are the library's.
func TestMonitorAnswerBy(t *testing.T) {
	t.Parallel()
	p, server := pipe(t)
	p.answerBy = time.Now().Add(20 * time.Millisecond)
	if err := p.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Read(make([]byte, 4)); err == nil {
		t.Fatal("read of a silent server")
	}
	select {
	case <-p.broken:
	default:
		t.Fatal("a failed read was not noted")
	}
	if err := p.SetReadDeadline(time.Time{}); err != nil { // must not lift the bound
		t.Fatal(err)
	}
	if _, err := p.Read(make([]byte, 4)); err == nil {
		t.Fatal("read of a silent server")
	}
	p.answers = 1
	if err := p.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	go server.Write([]byte{1})
	if _, err := p.Read(make([]byte, 4)); err != nil {
		t.Fatalf("read after the greeting: %v", err)
	}
}

// sink is a connection that keeps what is written.
type sink struct {
	net.Conn
	frames [][]byte
}

func (s *sink) Write(p []byte) (int, error) {
	s.frames = append(s.frames, bytes.Clone(p))
	return len(p), nil
}

// A ping that follows a request is left out, until it is needed to keep the connection: nothing
// else is, and nothing on a connection that no session's renewals use.
func TestNeedlessPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 12 * time.Second
		ping := frame([]byte{0xff, 0xff, 0xff, 0xfe, 0, 0, 0, opPing})
		request := frame([]byte{0, 0, 0, 7, 0, 0, 0, opList, 'a', 'b'})
		to := &sink{}
		c := &conn{lost: func(error) {}, granted: timeout}
		m := newConnMonitor(to, c, time.Now().Add(time.Minute))
		for i, s := range []struct {
			after time.Duration
			send  []byte
			goes  bool
		}{
			{0, frame(make([]byte, 44)), true}, // asks for a session
			{time.Second, request, true},
			{0, ping, false},
			{timeout/4 - 1, ping, false},
			{1, ping, true},
			{1, ping, false}, // the one before was a sign of life
			{timeout / 3, ping, true},
			{0, request[:5], true}, // in pieces, of which one looks like a ping
			{0, ping, true},
		} {
			time.Sleep(s.after)
			to.frames = nil
			if n, err := m.Write(s.send); n != len(s.send) || err != nil {
				t.Fatalf("%d: wrote %d, %v", i, n, err)
			}
			if got := len(to.frames) == 1 && bytes.Equal(to.frames[0], s.send); got != s.goes {
				t.Errorf("%d: sent %x, want %t", i, to.frames, s.goes)
			}
		}
		to.frames = nil
		m = newConnMonitor(to, &conn{granted: timeout}, time.Now())
		for _, p := range [][]byte{request, ping, ping} {
			if _, err := m.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		if len(to.frames) != 3 {
			t.Errorf("without renewals %d of 3 frames were sent", len(to.frames))
		}
	})
}
