//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// crashJob does an operation and is killed before its Times-th write, or does it to the
// end and says so. The operation comes in j.File.
func crashJob(j job) error {
	b, err := Open(context.Background(), j.Dir, nil)
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
		probe = func(_ *queueFile, write bool, _ []byte, _ int64) {
			if write {
				if writes++; writes == j.Times {
					_ = unix.Kill(os.Getpid(), unix.SIGKILL)
					select {} // it takes effect soon
				}
			}
		}
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
		err = b.(*backend).Evict(context.Background(), j.Name, "behind")
	}
	if err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

// A process is killed before each write of each operation, alone in the queue and between
// others, with another name's queue in the same bucket. Afterwards the queue is as before
// or as after the operation, without the dead; whoever waits for it proceeds; and the
// files go on working.
func TestKilledAtEveryWrite(t *testing.T) {
	names := colliding(3)
	for _, op := range []string{"enter", "leave", "publish", "evict"} {
		for _, crowd := range []string{"alone", "first", "middle", "last"} {
			if op == "evict" && (crowd == "alone" || crowd == "last") {
				continue // nobody behind to evict
			}
			t.Run(op+" "+crowd, func(t *testing.T) {
				t.Parallel()
				for step := 1; ; step++ {
					if step > 20 {
						t.Fatal("the operation does not end")
					}
					if killedAt(t, op, crowd, names, step) {
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

// killedAt does one of them, and returns whether the operation came to its end before.
func killedAt(t *testing.T, op, crowd string, names []string, step int) (finished bool) {
	t.Helper()
	dir, name := storeDir(t), names[1]
	s := openTestSession(t, dir)
	enter := func(name, id string, units int64) *ticket {
		r := mutexRequest(name, id)
		r.Units = units
		e := s.Ticket(r).(*ticket)
		if _, err := e.Enqueue(patient(t)); err != nil {
			t.Fatalf("enqueue %s: %v", id, err)
		}
		return e
	}
	others := []*ticket{enter(names[0], "other-0", 1), enter(names[2], "other-2", 1)}
	var ahead, behind *ticket
	if crowd == "middle" || crowd == "last" {
		ahead = enter(name, "ahead", 1)
	}
	p := start(t, job{Do: "crash", Dir: dir, Name: name, File: op, Times: step})
	if op != "enter" {
		p.must("in")
	}
	if op != "enter" && (crowd == "first" || crowd == "middle") {
		behind = enter(name, "behind", driver.Whole)
	}
	if op != "enter" {
		fmt.Fprintln(p.in, "go")
	}
	finished = p.says() == "done"
	p.kill()

	want := []string{}
	if ahead != nil {
		want = append(want, "ahead")
	}
	if behind != nil {
		want = append(want, "behind")
	}
	got := listIDs(t, s, name)
	if op == "evict" && !slices.Equal(got, want) {
		// Killed behind the commit: it was evicted, and its owner finds that out.
		if got = append(got, "behind"); slices.Equal(got, want) {
			behind.Wait(patient(t))
			behind = nil
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("killed at write %d: the queue has %v, not %v", step, got, want)
	}
	if ahead != nil {
		leave(t, ahead)
	}
	if behind != nil {
		proceeds(t, behind)
		leave(t, behind)
	}
	again := enter(name, "again", driver.Whole)
	if got := listIDs(t, s, name); !slices.Equal(got, []string{"again"}) {
		t.Fatalf("killed at write %d: then the queue has %v", step, got)
	}
	proceeds(t, again)
	leave(t, again)
	for _, e := range others {
		if got := listIDs(t, s, e.request.Name); !slices.Equal(got, []string{e.request.ID}) {
			t.Errorf("killed at write %d: the queue of %s has %v", step, e.request.Name, got)
		}
		leave(t, e)
	}
	return finished
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
	list, err := b.List(patient(t), name)
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
