package zklock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// Somebody queues in another dialect under our lock's node: neither would see the other, so
// we refuse, and the error and the doctor name whose form that is. The controls are an entry
// of our own dialect, which is waited for, and nodes that are no entries.
func TestOtherDialectRefused(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	const uuid, bare = "0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6", "0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f6"
	for _, c := range []struct {
		dialect      Dialect
		node, writer string // writer "": no other dialect
		busy         bool
	}{
		{DialectCurator, bare + "__lock__", "kazoo's form", false},
		{DialectCurator, bare + "__rlock__", "kazoo's form", false},
		{DialectCuratorRW, bare + "__lock__", "kazoo's form", false},
		{DialectKazoo, "_c_" + uuid + "-lock-", "Curator's form", false},
		{DialectKazoo, "_c_" + uuid + "-__READ__", "Curator's form", false},
		{DialectCurator, "_c_" + uuid + "-__WRIT__", "", true},
		{DialectKazoo, bare + "__lock__", "", true},
		{DialectCurator, "somebody-else-", "", false},
		{DialectKazoo, "_c_somebody-else-", "", false},
	} {
		t.Run(string(c.dialect)+" "+c.node, func(t *testing.T) {
			root := "/" + strings.ToLower(strings.NewReplacer("/", "-", "#", "-").Replace(uniqueName(t)))
			s := newSite(t, calm, &Options{Root: root, Dialect: c.dialect}, z)
			a := admin(t, z)
			testkit.Release(t, s.lock(t, "a"))
			node := s.put(t, a, "a", c.node, nil, zk.FlagEphemeralSequential)
			_, try := s.Mutex("a").TryLock(t.Context())
			switch {
			case c.writer != "":
				_, wait := s.Mutex("a").Lock(t.Context())
				for _, err := range []error{try, wait} {
					if !errors.Is(err, driver.ErrMismatch) || !strings.Contains(err.Error(), c.writer) || !strings.Contains(err.Error(), node[len(root)+3:]) {
						t.Errorf("%v: not that %s has %s", err, node, c.writer)
					}
				}
			case c.busy && (try == nil || !strings.Contains(try.Error(), "busy")):
				t.Errorf("beside an entry of the same dialect: %v", try)
			case !c.busy && try != nil:
				t.Errorf("beside a node that is no entry: %v", try)
			}
			if names, _, _ := a.Children(root + "/a"); c.writer != "" && len(names) != 1 {
				t.Errorf("what was refused has left an entry: %q", names)
			}
			fs, err := s.b.Diagnose(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			told := false
			for _, f := range fs {
				if f.Subject == "dialects" {
					told = f.Level == driver.Warn && f.Cure != "" && strings.Contains(f.Text, c.writer)
				}
			}
			if told != (c.writer != "") {
				t.Errorf("the doctor says %+v", fs)
			}
		})
	}
}

// A lock's node vanishes some time after its last entry, unless kazoo shares it: that looks
// once whether the node is there, and fails for good when it is gone later. The control is
// Curator's node, made before kazoo's, at a server that looks for empty ones all the time.
func TestKazooKeepsLockNodes(t *testing.T) {
	testtier.Long(t)
	t.Setenv("JAVA_TOOL_OPTIONS", "-Dznode.container.checkIntervalMs=100")
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	a := admin(t, z)
	for _, d := range []Dialect{DialectKazoo, DialectCurator} {
		s := newSite(t, calm, &Options{Root: "/" + string(d), Dialect: d}, z)
		testkit.Release(t, s.lock(t, "a"))
	}
	there := func(node string) bool {
		t.Helper()
		found, _, err := a.Exists(node)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	for end := time.Now().Add(time.Minute); there("/curator/a"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("an empty container is not removed: this test shows nothing")
		}
	}
	if !there("/kazoo/a") {
		t.Error("the node that kazoo has seen is gone")
	}
}

// The two strategies under one name refuse each other by name, in both directions: neither takes
// the other's node for a holder that has just gone, nor for a fault of the connection.
func TestOtherStrategyRefused(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	root := "/" + strings.ToLower(strings.NewReplacer("/", "-", "#", "-").Replace(uniqueName(t)))
	queue := newSite(t, calm, &Options{Root: root}, z)
	node := newSite(t, calm, &Options{Root: root, Strategy: StrategyNode}, z)
	refused := func(s *site, name, strategy string) {
		t.Helper()
		_, try := s.Mutex(name).TryLock(t.Context())
		_, wait := s.Mutex(name).Lock(t.Context())
		for _, err := range []error{try, wait} {
			if !errors.Is(err, driver.ErrMismatch) || !strings.Contains(err.Error(), "strategy="+strategy) {
				t.Errorf("%v: not that strategy=%s has the name", err, strategy)
			}
		}
	}
	l := queue.lock(t, "queued")
	refused(node, "queued", "queue")
	testkit.Release(t, l)
	refused(node, "queued", "queue") // its node stays for a while
	l = node.lock(t, "single")
	refused(queue, "single", "node")
	testkit.Release(t, l)
	testkit.Release(t, queue.lock(t, "single"))
}

// An observer without a session leaves a server that has fallen silent for another, in the time
// that the servers grant at least.
func TestObserverLeavesSilentServer(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s := newSite(t, calm, nil, z, z)
	c, err := s.b.anyConn(testkit.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if granted := c.timeout(); granted > 4*time.Second {
		t.Errorf("a session of an observer has %s, and the server's least is 4 s", granted)
	}
	s.net[0].Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Hold})
	testkit.Until(t, "an answer of the other server", func() error { // what was under way fails with its connection
		_, err := s.Inspect(testkit.Context(t), "a")
		return err
	})
}
