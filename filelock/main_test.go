//go:build linux || darwin || freebsd

package filelock

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
)

// childEnv has the job of a process that a test started from this same binary, as JSON.
const childEnv = "HASP_FILELOCK_CHILD"

func TestMain(m *testing.M) {
	s := os.Getenv(childEnv)
	if s == "" {
		drivertest.Main(m)
	}
	var j job
	err := json.Unmarshal([]byte(s), &j)
	if err == nil {
		err = jobs[j.Do](j)
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// job is the task of a child process, which ends when its input does.
type job struct {
	Do, Dir, Name, File string
	Times, Umask        int
}

// jobs print lines, which the test waits for.
var jobs = map[string]func(job) error{}

func init() {
	jobs["hold"], jobs["count"], jobs["crash"], jobs["stop"], jobs["fork"] = holdJob, countJob, crashJob, stopJob, forkJob
}

// child is such a process, seen from the test.
type child struct {
	*exec.Cmd
	t     testing.TB
	in    io.WriteCloser
	lines chan string
	wait  func() error
}

func start(t testing.TB, j job) *child {
	t.Helper()
	return startWith(t, j, nil)
}

// startWith starts it with attributes: as another user, say.
func startWith(t testing.TB, j job, attr *syscall.SysProcAttr) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if attr != nil {
		exe = "/proc/self/exe" // which another user can run though the directories above are closed to them
	}
	b, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: exec.Command(exe), t: t, lines: make(chan string, 1000)}
	c.Env = append(os.Environ(), childEnv+"="+string(b))
	c.Stderr, c.SysProcAttr = os.Stderr, attr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	c.wait = sync.OnceValue(func() error {
		<-read
		return c.Wait()
	})
	t.Cleanup(c.kill)
	return c
}

// kill is kill -9, also for one that is stopped.
func (c *child) kill() {
	_ = c.Process.Kill() // it may have ended
	for range c.lines {  // so that the reader comes to its end
	}
	_ = c.wait()
}

// patience is how long a test waits for what must come, on however slow a machine.
const patience = 60 * time.Second

// says waits for the next line.
func (c *child) says() string {
	c.t.Helper()
	select {
	case s := <-c.lines:
		return s
	case <-time.After(patience):
		c.t.Fatal("a child process said nothing")
	}
	return ""
}

func (c *child) must(want string) {
	c.t.Helper()
	if s := c.says(); s != want {
		c.t.Fatalf("a child said %q, not %q", s, want)
	}
}

// untilEOF waits for the end of the input.
func untilEOF() { _, _ = io.Copy(io.Discard, os.Stdin) }

// holdJob holds a name until its input ends.
func holdJob(j job) error {
	c, err := hasp.Open(context.Background(), "file://"+j.Dir)
	if err != nil {
		return err
	}
	l, err := c.Mutex(j.Name).Lock(context.Background())
	if err != nil {
		return err
	}
	fmt.Println("holds")
	go func() {
		<-l.Context().Done()
		fmt.Println("lost:", l.Err())
	}()
	untilEOF()
	return c.Close()
}

// patient is a context for what must come to an end by itself.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func storeDir(t testing.TB) string { return t.TempDir() + "/store" }

func openBackend(t testing.TB, dir string) *backend {
	t.Helper()
	b, err := New(patient(t), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b.(*backend)
}

// openTestSession opens a session on a separate backend, as another process would.
func openTestSession(t testing.TB, dir string) *session {
	t.Helper()
	s, _, err := openBackend(t, dir).Open(patient(t), driver.SessionOptions{Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s.(*session)
}

// mutexRequest is an exclusive entry.
func mutexRequest(name, id string) driver.Request {
	return driver.Request{Name: name, ID: id, Units: driver.Whole, Capacity: driver.Whole, Owner: `{"pid":1}`, Since: time.Now()}
}
