package zklock

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// The client library's own recipe, which writes Curator's names, at the same path: they
// exclude us and we them, in the order of arrival.
func TestLibraryLock(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s := newSite(t, calm, &Options{Root: "/"}, z)
	name := strings.ToLower(uniqueName(t)) // the node /<name>
	a := admin(t, z)
	theirs := func() *zk.Lock { return zk.NewLock(a, "/"+name, zk.WorldACL(zk.PermAll)) }

	l := theirs()
	if err := l.Lock(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Mutex(name).TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Fatalf("try while the library holds: %v", err)
	}
	waiting := s.queue(t, name)
	q, err := s.Inspect(t.Context(), name)
	if err != nil || len(q.Holders) != 1 || len(q.Waiters) != 1 || q.Holders[0].Session != sessionName(a.SessionID()) {
		t.Errorf("inspected %+v, %v", q, err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	held := testkit.Granted(t, waiting)
	got := make(chan error, 1)
	l = theirs()
	go func() { got <- l.Lock() }()
	select {
	case err := <-got:
		t.Fatalf("the library got what we hold: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	testkit.Release(t, held)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
}

// Both at work on one unsynchronised counter.
func TestLibraryLockRace(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	name, counter := strings.ToLower(uniqueName(t)), 0
	var wg sync.WaitGroup
	const rounds = 30
	for range 3 {
		s, a := newSite(t, calm, &Options{Root: "/"}, z), admin(t, z)
		wg.Go(func() {
			for range rounds {
				l, err := s.Mutex(name).Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				counter++ // the race detector checks it as well
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			l := zk.NewLock(a, "/"+name, zk.WorldACL(zk.PermAll))
			for range rounds {
				if err := l.Lock(); err != nil {
					t.Error(err)
					return
				}
				counter++
				if err := l.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if counter != 6*rounds {
		t.Errorf("counted %d, want %d", counter, 6*rounds)
	}
}

// foreign makes nodes as the other libraries do, byte for byte, in each dialect: a writer
// and a reader that were there first deny ours, and ours is on the server as they expect
// it.
func TestForeignNodes(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	const uuid, bare = "0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6", "0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f6"
	for _, c := range []struct {
		dialect        Dialect
		writer, reader string // theirs
		ours, reads    string // the part of ours behind the guid
	}{
		{DialectCurator, "_c_" + uuid + "-lock-", "_c_" + uuid + "-__READ__", "-lock-", "-__READ__"},
		{DialectCuratorRW, "_c_" + uuid + "-__WRIT__", "_c_" + uuid + "-__READ__", "-__WRIT__", "-__READ__"},
		{DialectKazoo, bare + "__lock__", bare + "__rlock__", "__lock__", "__rlock__"},
	} {
		t.Run(string(c.dialect), func(t *testing.T) {
			s := newSite(t, calm, &Options{Dialect: c.dialect}, z)
			name := uniqueName(t)
			parent, _ := s.b.opts.path(name)
			testkit.Release(t, s.lock(t, name))
			a := admin(t, z)
			put := func(prefix string) string {
				return s.put(t, a, name, prefix, []byte("10.1.2.3"), zk.FlagEphemeralSequential)
			}
			try := func(what string, want bool, lock func() (*hasp.Lease, error), suffix string) {
				t.Helper()
				l, err := lock()
				if (err == nil) != want {
					t.Fatalf("%s: %v", what, err)
				}
				if err != nil {
					return
				}
				found := false
				names, _, _ := a.Children(parent)
				for _, n := range names {
					if _, kind, ok := strings.Cut(n, mineIn(c.dialect, l.ID())); ok {
						found = kind[:len(kind)-10] == suffix
					}
				}
				if !found {
					t.Errorf("%s: none of %q ends in %s and a number", what, names, suffix)
				}
				testkit.Release(t, l)
			}
			write := func() (*hasp.Lease, error) { return s.Mutex(name).TryLock(t.Context()) }
			read := func() (*hasp.Lease, error) { return s.RWMutex(name).TryRLock(t.Context()) }

			node := put(c.writer)
			try("write behind a writer", false, write, "")
			try("read behind a writer", false, read, "")
			if es := s.entries(t, name); len(es) != 1 || es[0].Owner != "10.1.2.3" || es[0].ID != uuid || es[0].Seq == 0 {
				t.Errorf("listed %+v", es)
			}
			if err := s.b.Evict(t.Context(), name, uuid, ""); err != nil {
				t.Errorf("evict: %v", err)
			}
			if found, _, _ := a.Exists(node); found {
				t.Error("the evicted node is there")
			}
			put(c.reader)
			try("write behind a reader", false, write, "")
			try("read beside a reader", true, read, c.reads)
			if err := s.b.Evict(t.Context(), name, uuid, ""); err != nil {
				t.Errorf("evict: %v", err)
			}
			try("write alone", true, write, c.ours)
		})
	}
}

func mineIn(d Dialect, id string) string {
	if d == DialectKazoo {
		return guidOf(id).hex()
	}
	return guidOf(id).uuid()
}

// Two clients of ours in different dialects of Curator see each other, whichever of its
// locks a Java service uses at that path.
func TestDialectsOfCurator(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	name := uniqueName(t)
	a := newSite(t, calm, &Options{Dialect: DialectCurator}, z)
	b := newSite(t, calm, &Options{Dialect: DialectCuratorRW}, z)
	held := a.lock(t, name)
	waiting := b.queue(t, name)
	testkit.Release(t, held)
	held = testkit.Granted(t, waiting)
	waiting = a.queue(t, name)
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, waiting))
}

// Requests are not misread across the kinds: the list shows them as they were made.
func TestKindsListed(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	for _, d := range []Dialect{DialectCurator, DialectCuratorRW, DialectKazoo} {
		b := patient(t, &Options{Dialect: d}, z.Addr)
		s := openSession(t, b, calm)
		for _, c := range [][2]int64{{driver.Whole, driver.Whole}, {1, driver.Whole}, {7, driver.Whole}, {1, 1}, {3, 1000}, {driver.Whole - 1, driver.Whole - 1}} {
			r := testkit.RequestAs(uniqueName(t), fmt.Sprint("id-", c))
			r.Units, r.Capacity = c[0], c[1]
			k := s.Ticket(r)
			if v, err := k.Enqueue(t.Context()); err != nil || !v.Held {
				t.Fatalf("%s %v: %+v, %v", d, c, v, err)
			}
			es, err := b.List(t.Context(), r.Name, 0)
			if err != nil || len(es) != 1 || es[0].Units != c[0] || es[0].Capacity != c[1] || es[0].ID != r.ID {
				t.Errorf("%s %v: listed %+v, %v", d, c, es, err)
			}
			if err := k.Leave(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}
