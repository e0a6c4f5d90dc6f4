//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/driver"
)

func init() { jobs["half"] = halfJob }

// halfJob makes entries of a name up to the first slot beyond page 0, and removes the newest as a
// process does that dies between the commit and the rest.
func halfJob(j job) error {
	ctx := context.Background()
	b, err := New(ctx, j.Dir, nil)
	if err != nil {
		return err
	}
	s, _, err := b.Open(ctx, driver.SessionOptions{Gone: func(string, error) {}})
	if err != nil {
		return err
	}
	var last *ticket
	for i := range firstSlots + 1 {
		last = s.Ticket(mutexRequest(j.Name, fmt.Sprint("e", i))).(*ticket)
		if _, err := last.Enqueue(ctx); err != nil {
			return err
		}
	}
	q := last.file
	if err := q.lock(ctx); err != nil {
		return err
	}
	r, err := q.record(last.slot)
	if err == nil {
		err = q.mark(last.slot, &r)
	}
	q.unlock()
	if err != nil {
		return err
	}
	fmt.Println("done")
	untilEOF()
	return nil
}

// Root, which only looks at a user's private store, sees a name also if a process has died while it
// removed the newest entry: that is not listed, and not tidied away.
func TestRootLooksAtHalfRemoved(t *testing.T) {
	t.Parallel()
	dir := usersDir(t) + "/store"
	startWith(t, job{Do: "half", Dir: dir, Name: "a"},
		&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ana, Gid: ana}}).must("done")
	b := openBackend(t, dir)
	list, err := b.List(patient(t), "a", 0)
	var ids []string
	for _, e := range list {
		ids = append(ids, e.ID)
	}
	if want := []string{"e0", "e1", "e2", "e3", "e4", "e5"}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("list: %q, %v; want %q", ids, err, want)
	}
	var names []string
	if err := b.Names(patient(t), "", func(name string) bool { names = append(names, name); return true }); err != nil || len(names) != 1 {
		t.Errorf("names: %q, %v", names, err)
	}
	following, stop := context.WithCancel(patient(t))
	if err := b.Watch(following, "a", stop); !errors.Is(err, context.Canceled) {
		t.Errorf("watch: %v", err)
	}
}
