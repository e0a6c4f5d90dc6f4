//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

const note = "what was noted"

// crashJob does an operation and is killed before its Times-th write, or does it to the
// end and says so. The operation comes in j.File.
func crashJob(j job) error {
	b, err := New(context.Background(), j.Dir, nil)
	if err != nil {
		return err
	}
	s, _, err := b.Open(context.Background(), driver.SessionOptions{Gone: func(string, error) {}})
	if err != nil {
		return err
	}
	r := mutexRequest(j.Name, "crashes")
	r.Value = make([]byte, maxValue) // needs a second write
	r.Units = 1
	t := s.Ticket(r)
	arm := func() {
		writes := 0
		setProbe(func(write bool) {
			if write {
				if writes++; writes == j.Times {
					_ = unix.Kill(os.Getpid(), unix.SIGKILL)
					select {} // it takes effect soon
				}
			}
		})
	}
	if j.File == "enter" {
		arm()
	}
	if _, err := t.Enqueue(context.Background()); err != nil {
		return err
	}
	if j.File == "enter" {
		fmt.Println("done")
		return nil
	}
	fmt.Println("in")
	var word string
	if _, err := fmt.Scanln(&word); err != nil {
		return err
	}
	arm()
	switch j.File {
	case "leave":
		err = t.Leave(context.Background())
	case "publish":
		err = t.(driver.Publisher).Publish(context.Background(), make([]byte, maxValue))
	case "evict":
		err = b.(*backend).Evict(context.Background(), j.Name, "behind", note)
	}
	if err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

// A process is killed before each write of each operation, alone in the queue and between
// others, with another name's queue in the same file. Afterwards the queue is as before
// or as after the operation, without the dead; a waiter behind it proceeds; and the
// files go on working.
func TestKilledAtEveryWrite(t *testing.T) {
	names := colliding(3)
	for _, op := range []string{"enter", "leave", "publish", "evict"} {
		for _, at := range []string{"alone", "first", "middle", "last"} {
			if op == "evict" && (at == "alone" || at == "last") {
				continue // no entry behind to evict
			}
			t.Run(op+" "+at, func(t *testing.T) {
				t.Parallel()
				for step := 1; ; step++ {
					if step > 20 {
						t.Fatal("the operation does not end")
					}
					first, behind := killedAt(t, op, at, names, step, false), killedAt(t, op, at, names, step, true)
					if first && behind {
						if step == 1 {
							t.Error("the operation writes nothing")
						}
						return
					}
				}
			})
		}
	}
}

// crashScenario is the queue around the process that is killed: entries of one session of ours,
// ahead of and behind its own where they are not nil, and in other queues of the file.
type crashScenario struct {
	t             *testing.T
	s             *session
	name          string
	ahead, behind *ticket
	others        []*ticket
}

func (c *crashScenario) enter(name, id string, units int64) *ticket {
	c.t.Helper()
	r := mutexRequest(name, id)
	r.Units = units
	e := c.s.Ticket(r).(*ticket)
	if _, err := e.Enqueue(patient(c.t)); err != nil {
		c.t.Fatalf("enqueue %s: %v", id, err)
	}
	return e
}

// killedAt does one of them, in page 0 or behind it, and returns whether the operation came to its
// end before.
func killedAt(t *testing.T, op, at string, names []string, step int, behind bool) (finished bool) {
	t.Helper()
	dir := storeDir(t)
	if behind {
		defer fill(t, dir, names[0])()
	}
	c := &crashScenario{t: t, s: openTestSession(t, dir), name: names[1]}
	c.others = []*ticket{c.enter(names[0], "other-0", 1), c.enter(names[2], "other-2", 1)}
	if at == "middle" || at == "last" {
		c.ahead = c.enter(c.name, "ahead", 1)
	}
	p := start(t, job{Do: "crash", Dir: dir, Name: c.name, File: op, Times: step})
	if op != "enter" {
		p.must("in")
		if at == "first" || at == "middle" {
			c.behind = c.enter(c.name, "behind", driver.Whole)
		}
		fmt.Fprintln(p.in, "go")
	}
	finished = p.says() == "done"
	p.kill()
	if op == "evict" {
		c.noted(step, finished)
	}
	c.consistent(step, op == "evict")
	return finished
}

// noted checks that there is a note of an eviction that came to its end, and none of one that
// was not done.
func (c *crashScenario) noted(step int, finished bool) {
	c.t.Helper()
	got, err := openBackend(c.t, c.s.store.path).LastEviction(patient(c.t), c.name)
	inQueue := slices.Contains(listIDs(c.t, c.s, c.name), "behind")
	if err != nil || got != "" && (got != note || inQueue) || finished && got == "" {
		c.t.Errorf("killed at write %d: note %q, %v; the entry is in the queue: %t", step, got, err, inQueue)
	}
}

// consistent checks that the queue has our entries and nothing of the dead, and goes on.
func (c *crashScenario) consistent(step int, mayBeEvicted bool) {
	c.t.Helper()
	want := []string{}
	for _, e := range []*ticket{c.ahead, c.behind} {
		if e != nil {
			want = append(want, e.request.ID)
		}
	}
	got := listIDs(c.t, c.s, c.name)
	if mayBeEvicted && slices.Equal(append(slices.Clone(got), "behind"), want) {
		// Killed behind the commit: its owner finds that out.
		if _, err := c.behind.Wait(patient(c.t)); !errors.Is(err, driver.ErrGone) {
			c.t.Fatalf("killed at write %d: the evicted was told %v", step, err)
		}
		c.behind, want = nil, got
	}
	if !slices.Equal(got, want) {
		c.t.Fatalf("killed at write %d: the queue has %v, not %v", step, got, want)
	}
	if c.ahead != nil {
		leave(c.t, c.ahead)
	}
	if c.behind != nil {
		proceeds(c.t, c.behind)
		leave(c.t, c.behind)
	}
	again := c.enter(c.name, "again", driver.Whole)
	if got := listIDs(c.t, c.s, c.name); !slices.Equal(got, []string{"again"}) {
		c.t.Fatalf("killed at write %d: then the queue has %v", step, got)
	}
	proceeds(c.t, again)
	leave(c.t, again)
	for _, e := range c.others {
		if got := listIDs(c.t, c.s, e.request.Name); !slices.Equal(got, []string{e.request.ID}) {
			c.t.Errorf("killed at write %d: the queue of %s has %v", step, e.request.Name, got)
		}
		leave(c.t, e)
	}
}

func leave(t *testing.T, e *ticket) {
	t.Helper()
	if err := e.Leave(patient(t)); err != nil {
		t.Fatalf("leave %s: %v", e.request.ID, err)
	}
}

// proceeds waits until an entry holds.
func proceeds(t *testing.T, e *ticket) {
	t.Helper()
	v, err := e.Enqueue(patient(t))
	for err == nil && !v.Held {
		v, err = e.Wait(patient(t))
	}
	if err != nil {
		t.Fatalf("%s is stuck: %v", e.request.ID, err)
	}
}

func listIDs(t *testing.T, s *session, name string) []string {
	t.Helper()
	b := openBackend(t, s.store.path)
	defer b.Close()
	list, err := b.List(patient(t), name, 0)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, e := range list {
		if e.Session != s.id.String() {
			t.Errorf("%s is of session %s", e.ID, e.Session)
		}
		ids = append(ids, e.ID)
	}
	return ids
}
