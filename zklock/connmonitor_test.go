package zklock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"
)

func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// pipe is a connMonitor with a server behind it that the test plays.
func pipe(t *testing.T) (*connMonitor, net.Conn) {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return newConnMonitor(near, &conn{}, time.Now().Add(time.Minute)), far
}

// exchange sends requests, has the server answer, and returns what either end read.
func exchange(t *testing.T, p *connMonitor, server net.Conn, answer []byte, requests ...[]byte) (asked, answered []byte) {
	t.Helper()
	done := make(chan error, 1)
	asked = make([]byte, len(bytes.Join(requests, nil)))
	go func() {
		_, err := io.ReadFull(server, asked)
		if err == nil {
			_, err = server.Write(answer)
		}
		done <- err
	}()
	for _, r := range requests {
		was := bytes.Clone(r)
		if n, err := p.Write(r); n != len(r) || err != nil {
			t.Fatalf("wrote %d bytes of %d: %v", n, len(r), err)
		}
		if !bytes.Equal(r, was) {
			t.Errorf("the library's buffer was changed to %x", r)
		}
	}
	answered = make([]byte, len(answer))
	if _, err := io.ReadFull(iotest.OneByteReader(p), answered); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return asked, answered
}

// request is a frame of a request; for most types what follows is a path.
func request(xid, op int32, path string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(xid))
	b = binary.BigEndian.AppendUint32(b, uint32(op))
	b = binary.BigEndian.AppendUint32(b, uint32(len(path)))
	return frame(append(append(b, path...), "data and ACL"...))
}

func answer(xid int32, zxid int64) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(xid))
	b = binary.BigEndian.AppendUint64(b, uint64(zxid))
	return frame(append(b, make([]byte, 40)...))
}

func greeting(timeout int) []byte {
	return frame(append(binary.BigEndian.AppendUint32(make([]byte, 4), uint32(timeout)), make([]byte, 28)...))
}

// The monitor learns the granted timeout, reports when a create is on its way, and finds the
// zxid of its answer among others.
func TestMonitor(t *testing.T) {
	t.Parallel()
	p, server := pipe(t)
	exchange(t, p, server, greeting(4321), frame(make([]byte, 44)))
	if got := p.conn.timeout(); got != 4321*time.Millisecond {
		t.Errorf("granted %s", got)
	}
	f, other := p.conn.trackCreate("/a/mine-"), p.conn.trackCreate("/a/other-")
	exchange(t, p, server, answer(7, 70), request(7, opExists, "/a/mine-"))
	select {
	case <-f.sent:
		t.Fatal("an exists was taken for the create")
	default:
	}
	exchange(t, p, server, bytes.Join([][]byte{answer(-1, -1), answer(9, 90), answer(-2, 99), answer(8, 1<<40+5)}, nil),
		request(8, opCreate, "/a/mine-"), request(9, opCreate, "/a/else-"))
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
	exchange(t, p, server, answer(10, 100), frame([]byte{0, 0, 0, 10, 0, 0, 0, opCreate, 0xff, 0xff, 0xff, 0xff}))
	exchange(t, p, server, answer(11, 110), frame([]byte{0, 0, 0, 11, 0, 0, 0, opCreate, 0x7f, 0xff, 0xff, 0xff}))
	exchange(t, p, server, answer(12, 120), frame([]byte{0, 0, 0, 12, 0, 0, 0, opCreate}))
}

// The library never learns a zxid, and the servers are told the last one of the connections before:
// when the session is continued, and when watches are set again, however many answers have come
// meanwhile. Nothing else is changed.
func TestMonitorKeepsTheZxid(t *testing.T) {
	t.Parallel()
	ask := func(zxid uint64) []byte { // the protocol's version, the last zxid, and the rest
		return frame(append(binary.BigEndian.AppendUint64(make([]byte, 4), zxid), "timeout, session, password"...))
	}
	again := func(zxid uint64) []byte { // xid, type, the last zxid, and the watches
		b := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 6}, opSetWatches)
		return frame(append(binary.BigEndian.AppendUint64(b, zxid), "three lists"...))
	}
	p, server := pipe(t)
	p.conn.lost = func(error) {} // a session's
	for _, round := range []struct{ before, gets uint64 }{{0, 70}, {70, 1<<40 + 5}, {1<<40 + 5, 0}, {1<<40 + 5, 1<<40 + 6}} {
		asked, answered := exchange(t, p, server, greeting(4000), ask(999))
		if !bytes.Equal(asked, ask(round.before)) {
			t.Errorf("%v: asked for the session with %x", round, asked)
		}
		if !bytes.Equal(answered, greeting(4000)) {
			t.Errorf("%v: the greeting was changed to %x", round, answered)
		}
		// An event and a ping say nothing of answers.
		answers := bytes.Join([][]byte{answer(-1, 1<<50), answer(5, int64(round.gets)), answer(-2, 1<<51), answer(6, 0)}, nil)
		want := bytes.Join([][]byte{answer(-1, 1<<50), answer(5, 0), answer(-2, 1<<51), answer(6, 0)}, nil)
		if _, got := exchange(t, p, server, answers, request(5, opExists, "/a")); !bytes.Equal(got, want) {
			t.Errorf("%v: the library got %x", round, got)
		}
		if asked, _ := exchange(t, p, server, answer(6, 0), again(888)); !bytes.Equal(asked, again(round.before)) {
			t.Errorf("%v: set watches with %x", round, asked)
		}
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		p, server = newConnMonitor(near, p.conn, p.answerBy), far
	}
}

// What is not the protocol, or not written as this version of the library does, fails and is not
// passed on.
func TestMonitorRefuses(t *testing.T) {
	t.Parallel()
	p, server := pipe(t)
	whole := frame(make([]byte, 44))
	for _, piece := range [][]byte{nil, whole[:3], whole[:20], append(bytes.Clone(whole), whole...)} {
		if n, err := p.Write(piece); n != 0 || !errors.Is(err, errPieces) {
			t.Errorf("wrote %d bytes of %x: %v", n, piece, err)
		}
	}
	for _, length := range []uint32{0, 7, 1 << 31} {
		go server.Write(append(binary.BigEndian.AppendUint32(nil, length), make([]byte, 20)...))
		if n, err := p.Read(make([]byte, 4)); n != 0 || err == nil {
			t.Errorf("read %d bytes of an answer of %d", n, length)
		}
		p, server = pipe(t)
	}
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
	go server.Write(answer(1, 1))
	if _, err := p.Read(make([]byte, 4)); err != nil {
		t.Fatalf("read after the greeting: %v", err)
	}
}
