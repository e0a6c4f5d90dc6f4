package faultnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	limit   = 20 * time.Second       // an event that does not come by then never comes
	silence = 100 * time.Millisecond // how long nothing must come to count as nothing
)

// lineServer is a real TCP server: it answers each line "x" with "re:x" and remembers
// what it was asked and how its connections ended.
type lineServer struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	lines []string
	ends  []error // of reading; io.EOF is a FIN
	conns []*net.TCPConn
	tick  chan struct{} // closed and replaced at each change
}

func startServer(t *testing.T) *lineServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &lineServer{listener: l, tick: make(chan struct{})}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.note(func() { s.conns = append(s.conns, c.(*net.TCPConn)) })
			s.wg.Go(func() { s.serve(c) })
		}
	})
	return s
}

func (s *lineServer) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			s.note(func() { s.ends = append(s.ends, err) })
			return
		}
		s.note(func() { s.lines = append(s.lines, strings.TrimSpace(line)) })
		fmt.Fprintf(c, "re:%s", line)
	}
}

func (s *lineServer) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.tick)
	s.tick = make(chan struct{})
}

// waitFor returns once cond, called with the server's lock held, is true.
func (s *lineServer) waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	late := time.After(limit)
	for {
		s.mu.Lock()
		ok, tick := cond(), s.tick
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-tick:
		case <-late:
			t.Fatalf("the server never saw %s", what)
		}
	}
}

func (s *lineServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.lines...)
}

func (s *lineServer) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *lineServer) stop() {
	s.listener.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// lab is a server behind a proxy; at the end of the test both are gone, and so must be
// every goroutine.
type lab struct {
	*Proxy
	server *lineServer
}

func newLab(t *testing.T) *lab {
	t.Helper()
	before := runtime.NumGoroutine()
	s := startServer(t)
	p, err := New(context.Background(), s.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		s.stop()
		noGoroutinesAbove(t, before)
	})
	return &lab{p, s}
}

func noGoroutinesAbove(t *testing.T, before int) {
	t.Helper()
	for end := time.Now().Add(limit); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), allStacks())
		}
	}
}

func allStacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// client is one connection through the proxy.
type client struct {
	*net.TCPConn
	t  *testing.T
	in *bufio.Reader
}

func (l *lab) dial(t *testing.T) *client {
	t.Helper()
	c, err := net.DialTimeout("tcp", l.Addr(), limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{c.(*net.TCPConn), t, bufio.NewReader(c)}
}

// mustBeReset dials and expects a reset, which may come before connect has returned.
func (l *lab) mustBeReset(t *testing.T) {
	t.Helper()
	c, err := net.DialTimeout("tcp", l.Addr(), limit)
	if err == nil {
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(limit))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, errRST) {
		t.Fatalf("the connection ended with %v; want %v", err, errRST)
	}
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c, line); err != nil {
		c.t.Fatalf("send %q: %v", line, err)
	}
}

func (c *client) receive() (string, error) {
	c.SetReadDeadline(time.Now().Add(limit))
	line, err := c.in.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (c *client) mustReceive(want string) {
	c.t.Helper()
	if got, err := c.receive(); err != nil || got != want {
		c.t.Fatalf("received %q, %v; want %q", got, err, want)
	}
}

func (c *client) mustEndWith(want error) {
	c.t.Helper()
	if got, err := c.receive(); got != "" || !errors.Is(err, want) {
		c.t.Fatalf("received %q, %v; want %v", got, err, want)
	}
}

func (c *client) ask(line string) {
	c.t.Helper()
	c.send(line)
	c.mustReceive("re:" + line)
}

// mustStaySilent asserts that neither bytes nor an end arrive.
func (c *client) mustStaySilent() {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(silence))
	if b, err := c.in.Peek(1); len(b) > 0 || !isTimeout(err) {
		c.t.Fatalf("received %q, %v; want silence", b, err)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// until waits for the proxy's counters.
func (l *lab) until(t *testing.T, what string, cond func(Stats) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := l.WaitFor(ctx, cond); err != nil {
		t.Fatalf("waiting until %s: %v; counters: %+v", what, err, l.Stats())
	}
}

func upHas(n int) func(Stats) bool { return func(s Stats) bool { return s.Up.Waiting() == int64(n) } }
func downHas(n int) func(Stats) bool {
	return func(s Stats) bool { return s.Down.Waiting() == int64(n) }
}

var (
	errFIN error = io.EOF
	errRST error = syscall.ECONNRESET
)
