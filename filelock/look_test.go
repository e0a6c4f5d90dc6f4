//go:build linux || darwin || freebsd

package filelock

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
)

// Root, which only looks at a user's private store, is not shown the entry of a process that has
// died, and does not tidy it away.
func TestRootLooksAtTheDead(t *testing.T) {
	t.Parallel()
	dir := usersDir(t) + "/store"
	as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ana, Gid: ana}}
	lives, dies := startWith(t, job{Do: "hold", Dir: dir, Name: "lives"}, as), startWith(t, job{Do: "hold", Dir: dir, Name: "dies"}, as)
	lives.must("holds")
	dies.must("holds")
	dies.kill()
	b := openBackend(t, dir)
	s, err := b.use(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.leave()
	file := s.file(newKey("dies")).name
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := b.List(patient(t), "dies", 0); len(list) != 0 || err != nil {
		t.Errorf("list: %v, %v", list, err)
	}
	var names []string
	if err := b.Names(patient(t), "", func(name string) bool { names = append(names, name); return true }); err != nil || !slices.Equal(names, []string{"lives"}) {
		t.Errorf("names: %q, %v", names, err)
	}
	following, stop := context.WithCancel(patient(t))
	if err := b.Watch(following, "dies", stop); !errors.Is(err, context.Canceled) {
		t.Errorf("watch: %v", err)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the queue file was changed, %v", err)
	}
}
