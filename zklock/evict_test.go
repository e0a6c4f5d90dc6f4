package zklock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// evicted is an entry that stood, and the node of its lock.
type evicted struct {
	*hasp.Lease
	q    *backend
	name string
	node string
}

func toEvict(t *testing.T, s *site) evicted {
	t.Helper()
	name := uniqueName(t)
	l := s.lock(t, name)
	node, err := s.b.opts.path(name)
	if err != nil {
		t.Fatal(err)
	}
	return evicted{l, s.b, name, node}
}

func (e evicted) noted(t *testing.T, want string) {
	t.Helper()
	if note, err := e.q.LastEviction(t.Context(), e.name); note != want || err != nil {
		t.Errorf("last eviction: %q, %v, want %q", note, err, want)
	}
}

// stay keeps the lock's node: the servers remove a container that is empty when they look.
func (e evicted) stay(t *testing.T, a *zk.Conn) {
	t.Helper()
	if _, err := a.Create(e.node+"/stay", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
}

// A client that may not write the lock's node, or finds another program's data there, evicts
// without a note; a client that may not delete evicts nothing, and leaves no note of it.
func TestEvictWithoutNote(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, a := newSite(t, calm, nil, z), admin(t, z)
	const most = zk.PermRead | zk.PermCreate | zk.PermAdmin
	for _, c := range []struct {
		what string
		may  int32
		data string
		want error
		note string
	}{
		{"all is allowed", zk.PermAll, "", nil, "note"},
		{"there is an older note", zk.PermAll, `{"evicted":"old"}`, nil, "note"},
		{"what a semaphore of kazoo's keeps there", zk.PermAll, "3", nil, ""},
		{"another's JSON", zk.PermAll, `{"id":"x"}`, nil, ""},
		{"no permission to write", most | zk.PermDelete, "", nil, ""},
		{"no permission to delete", most | zk.PermWrite, "", driver.ErrRefused, ""},
		{"neither", most, "", driver.ErrRefused, ""},
	} {
		e := toEvict(t, s)
		e.stay(t, a)
		if _, err := a.Set(e.node, []byte(c.data), -1); err != nil {
			t.Fatal(err)
		}
		if _, err := a.SetACL(e.node, zk.WorldACL(c.may), -1); err != nil {
			t.Fatal(err)
		}
		err := e.q.Evict(t.Context(), e.name, e.ID(), "note")
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if stands := len(s.entries(t, e.name)) > 0; stands != (c.want != nil) {
			t.Errorf("%s: the entry stands: %t", c.what, stands)
		}
		e.noted(t, c.note)
		if data, _, err := a.Get(e.node); err != nil || c.note == "" && string(data) != c.data {
			t.Errorf("%s: the node's data has become %q, %v", c.what, data, err)
		}
		if c.want != nil { // let it go
			if _, err := a.SetACL(e.node, zk.WorldACL(zk.PermAll), -1); err != nil {
				t.Fatal(err)
			}
			testkit.Release(t, e.Lease)
		}
	}
}

// Many evict from one name at once, each replacing the note of another: each entry is
// removed, and the note that stays is the whole of one of them.
func TestEvictTogether(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s := newSite(t, calm, nil, z)
	e := toEvict(t, s)
	defer testkit.Release(t, e.Lease) // it stands all the time, and the container with it
	d := openSession(t, s.b, calm)
	var ids []string
	for i := range 8 {
		ids = append(ids, fmt.Sprintf("%s-%d", strings.ToLower(e.name), i))
		if v, err := d.Ticket(testkit.RequestAs(e.name, ids[i])).Enqueue(t.Context()); err != nil || v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() {
			if err := e.q.Evict(t.Context(), e.name, id, "note of "+id); err != nil {
				t.Errorf("evict %s: %v", id, err)
			}
		})
	}
	all.Wait()
	if left := s.entries(t, e.name); len(left) != 1 || left[0].ID != e.ID() {
		t.Errorf("left: %+v", left)
	}
	note, err := e.q.LastEviction(t.Context(), e.name)
	if id, ok := strings.CutPrefix(note, "note of "); err != nil || !ok || !slices.Contains(ids, id) {
		t.Errorf("last eviction: %q, %v", note, err)
	}
}

// With strategy node another program's holder is evicted by the id that it is listed with, and not
// its successor.
func TestEvictForeignNode(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a, root := admin(t, z), "/"+uniqueName(t)
	b := patient(t, &Options{Root: root, Strategy: StrategyNode}, z.Addr)
	t.Cleanup(func() { b.Close() })
	if _, err := a.Create(root, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	for before := ""; ; {
		if _, err := a.Create(root+"/a", []byte("10.1.2.3"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		all, err := b.List(t.Context(), "a", 0)
		if err != nil || len(all) != 1 || all[0].Owner != "10.1.2.3" {
			t.Fatalf("listed %+v, %v", all, err)
		}
		if before != "" {
			if err := b.Evict(t.Context(), "a", before, ""); !errors.Is(err, driver.ErrGone) {
				t.Errorf("evict who held it before: %v", err)
			}
		}
		if err := b.Evict(t.Context(), "a", all[0].ID, ""); err != nil {
			t.Fatalf("evict %s: %v", all[0].ID, err)
		}
		if found, _, err := a.Exists(root + "/a"); found || err != nil {
			t.Errorf("evicted, and there is a node: %t, %v", found, err)
		}
		if before != "" {
			return
		}
		before = all[0].ID
	}
}
