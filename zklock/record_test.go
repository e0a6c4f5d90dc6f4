package zklock

import (
	"encoding/binary"
	"fmt"
	"path"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/faultnet"
)

// opPing is the type of a ping, which the client library sends.
const opPing = 11

// recording has the requests of a site's only connection, in their order. The server's counters
// count all clients, and pings too, so that a count by them would depend on how long the test
// takes.
type recording struct {
	lock string // the node of the lock whose work is counted

	mu  sync.Mutex
	all []asked
}

// asked is one request; the path is empty for those that have none.
type asked struct {
	op   int32
	path string
}

func (a asked) String() string { return fmt.Sprintf("%d %s", a.op, a.path) }

// The requests that nothing else in this package has to know by their numbers.
const (
	opExists = 3
	opList   = 12
	opMulti  = 14
)

// record notes all requests from now on, until the network is healed.
func (s *site) record(t testing.TB, name string) *recording {
	t.Helper()
	node, err := s.b.opts.path(name)
	if err != nil {
		t.Fatal(err)
	}
	r, up := &recording{lock: node}, frames{}
	s.net[0].Lose(faultnet.Up, 1, func(chunk []byte) bool {
		up.feed(chunk, r.note)
		return false
	})
	return r
}

// frames cuts a stream into frames: four bytes of length, then as many bytes.
type frames struct{ rest []byte }

func (f *frames) feed(chunk []byte, frame func(body []byte)) {
	f.rest = append(f.rest, chunk...)
	for len(f.rest) >= 4 {
		n := 4 + int(binary.BigEndian.Uint32(f.rest))
		if n > len(f.rest) {
			break
		}
		frame(f.rest[4:n])
		f.rest = f.rest[n:]
	}
}

func (r *recording) note(body []byte) {
	if len(body) < 8 {
		return
	}
	a := asked{op: int32(binary.BigEndian.Uint32(body[4:]))}
	if len(body) >= 12 && a.op != opMulti && a.op != opPing {
		if n := int(binary.BigEndian.Uint32(body[8:])); 0 <= n && n <= len(body)-12 {
			a.path = string(body[12 : 12+n])
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, a)
}

// work is the requests so far that the lock needs: without those that keep the session alive, and
// without self-watches, which are set only for longer holds and waits, as on a busy machine.
func (r *recording) work() (work []asked) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.all {
		switch {
		case a.op == opPing, a.op == opMulti, a.op == opExists && a.path == "/":
		case a.op == opList && path.Dir(a.path) == r.lock:
		default:
			work = append(work, a)
		}
	}
	return work
}
