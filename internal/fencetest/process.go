//go:build unix

package fencetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/testkit"
)

const childEnv = "HASP_GUARDTEST_CHILD"

// task is the input that a child is started with.
type task struct {
	Store  string // URL
	TTL    time.Duration
	Name   string
	Target string
}

// order tells a child what to do with its token: advance, write or overwrite.
type order struct{ Do, Value string }

// report is a child's answer to an order; the first report says that it holds the lock.
type report struct {
	Token uint64
	Held  bool // as the lease says at that moment
	Err   string
	Stale *fencing.StaleError
}

// Main runs a package's tests, or the child for which a test has started this binary again.
// TestMain calls it.
func Main(m *testing.M, open Opener) {
	set := os.Getenv(childEnv)
	if set == "" {
		os.Exit(m.Run())
	}
	var k task
	err := json.Unmarshal([]byte(set), &k)
	if err == nil {
		err = k.run(open)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run takes the lock and follows orders until its input ends. It never checks again whether it
// holds the lock: it stands for a holder that has just checked, at any later order.
func (k task) run(open Opener) error {
	ctx := context.Background()
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := testkit.Again(soon, func() (Resource, error) { return open(ctx, k.Target) })
	if err != nil {
		return err
	}
	c, err := testkit.Again(soon, func() (*hasp.Client, error) { return hasp.Open(ctx, k.Store, hasp.WithTTL(k.TTL)) })
	if err != nil {
		return err
	}
	defer c.Close()
	lease, err := testkit.Again(soon, func() (*hasp.Lease, error) { return c.Mutex(k.Name).Lock(soon) })
	if err != nil {
		return err
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	if err := out.Encode(report{Token: lease.Token(), Held: lease.Held()}); err != nil {
		return err
	}
	for {
		var o order
		if in.Decode(&o) != nil {
			return nil
		}
		answer := report{Token: lease.Token(), Held: lease.Held()}
		if err := o.follow(ctx, r, k.Name, lease.Token()); err != nil {
			answer.Err = err.Error()
			errors.As(err, &answer.Stale)
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
}

func (o order) follow(ctx context.Context, r Resource, name string, token uint64) error {
	switch o.Do {
	case "advance":
		return r.Advance(ctx, name, token)
	case "write":
		return r.Write(ctx, name, token, o.Value)
	case "overwrite":
		return r.Overwrite(ctx, name, o.Value)
	}
	return fmt.Errorf("no such order: %q", o.Do)
}

// patience is how long a child may take for anything. Only a failure takes it.
const patience = 60 * time.Second

// child is a process that contends for the lock.
type child struct {
	t       *testing.T
	cmd     *exec.Cmd
	orders  *json.Encoder
	reports chan report // closed when its output ends
	words   bytes.Buffer
}

func start(t *testing.T, k task) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(self, "-test.run=^$"), reports: make(chan report)}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(set))
	c.cmd.Stderr = &c.words
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.orders = json.NewEncoder(in)
	gone := make(chan struct{})
	go func() {
		defer close(c.reports)
		for reports := json.NewDecoder(out); ; {
			var r report
			if reports.Decode(&r) != nil {
				return
			}
			select {
			case c.reports <- r:
			case <-gone: // the test does not listen any more
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(gone)
		_ = c.cmd.Process.Kill() // even one that is stopped
		_ = c.cmd.Wait()
		if t.Failed() {
			t.Logf("a child's last words: %s", c.words.Bytes())
		}
	})
	return c
}

func (c *child) hear() report {
	c.t.Helper()
	select {
	case r, ok := <-c.reports:
		if !ok {
			c.t.Fatal("a child ended without a report (does TestMain call fencetest.Main?)")
		}
		return r
	case <-time.After(patience):
		c.t.Fatalf("no report from a child within %s", patience)
	}
	panic("unreachable")
}

func (c *child) do(verb, value string) report {
	c.t.Helper()
	if err := c.orders.Encode(order{verb, value}); err != nil {
		c.t.Fatal(err)
	}
	return c.hear()
}

// must is do for steps that must succeed.
func (c *child) must(verb, value string) {
	c.t.Helper()
	if r := c.do(verb, value); r.Err != "" {
		c.t.Fatalf("%s: %s", verb, r.Err)
	}
}

// stop returns when the process stands still: the signal alone is only a request.
func (c *child) stop() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(c.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			c.t.Fatalf("the child has not stopped: status %#x, %v", status, err)
		}
		return
	}
}

func (c *child) resume() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
}
