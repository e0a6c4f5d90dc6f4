// Package haspserve runs the command hasp serve, for tests: as a process that can be killed, stopped and started anew.
package haspserve

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspbin"
)

// Server is a process of hasp serve, which can be killed and started again at its address.
type Server struct {
	Addr  string // host and port
	Store string // its URL, for the next start

	t    testing.TB
	file string
	args []string

	cmd    *exec.Cmd
	exited chan struct{}
	orphan io.Closer // ends the process with the test, also if that is killed
}

// New starts a server of a store, which ends with the test.
func New(t testing.TB, store string, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, file: haspbin.Build(t), Store: store, Addr: "127.0.0.1:0", args: args}
	s.Start()
	t.Cleanup(s.Kill)
	return s
}

// Start returns when the server says where it listens. One that cannot reach its store ends at once, and
// is started again, as a service manager would.
func (s *Server) Start() {
	s.t.Helper()
	for range 20 {
		if s.launch() {
			return
		}
	}
	s.t.Fatalf("hasp serve ends at once; try: hasp serve --store %s", s.Store)
}

func (s *Server) launch() bool {
	s.t.Helper()
	s.cmd = exec.Command(s.file, append([]string{"serve", "--store", s.Store, "--listen", s.Addr, "--log", "off"}, s.args...)...)
	known := slices.DeleteFunc(os.Environ(), func(v string) bool { // hasp refuses what it does not know: these are the tests'
		return strings.HasPrefix(v, "HASP_SCREENSHOTS=") || strings.HasPrefix(v, "HASP_PROGRAMS")
	})
	s.cmd.Env = append(known, "HOME="+s.t.TempDir())
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.orphan = follow(s.t, s.cmd.Process.Pid)
	listens := make(chan string, 1)
	exited, cmd := make(chan struct{}), s.cmd
	s.exited = exited
	go func() {
		defer close(exited)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if _, url, ok := strings.Cut(lines.Text(), " at http"); ok {
				listens <- strings.TrimPrefix(strings.TrimPrefix(url, "s"), "://")
			}
		}
		_ = cmd.Wait() // it was killed, mostly
		listens <- ""  // it stays in the channel unread, if the server has listened
	}()
	addr := testkit.Await(s.t, "hasp serve to listen", listens)
	if addr == "" {
		_ = s.orphan.Close()
		return false
	}
	s.Addr = addr
	return true
}

// follow kills a process when this one ends, however it does.
func follow(t testing.TB, pid int) io.Closer {
	t.Helper()
	c := exec.Command("sh", "-c", fmt.Sprintf("read x; kill -9 %d 2>/dev/null", pid))
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.Wait() }() // it fails if the process has gone before
	return in
}

// Signal sends a signal.
func (s *Server) Signal(sig os.Signal) { _ = s.cmd.Process.Signal(sig) } // one that has gone needs none

// Kill ends the server as a crash does.
func (s *Server) Kill() {
	s.Signal(syscall.SIGKILL)
	<-s.exited
	_ = s.orphan.Close()
}

// URL is that of a store, for a client.
func (s *Server) URL() string { return "hasp+http://" + s.Addr }

// PID is that of the process.
func (s *Server) PID() int { return s.cmd.Process.Pid }
