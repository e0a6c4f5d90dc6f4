package zklock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/adler32"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// snapshot is a server's stored state, written as it would write it: the only way to have
// a counter near its end without two billion creates.
type snapshot struct{ bytes.Buffer }

func (s *snapshot) put(vs ...any) {
	for _, v := range vs {
		if text, ok := v.(string); ok {
			s.put(int32(len(text)))
			s.WriteString(text)
			continue
		}
		if err := binary.Write(s, binary.BigEndian, v); err != nil {
			panic(err)
		}
	}
}

// node adds a node that belongs to the world.
func (s *snapshot) node(path string, cversion int32, owner int64) {
	s.put(path, int32(0), int64(1)) // no data, the first ACL
	s.put(int64(1), int64(1), int64(0), int64(0), int32(0), cversion, int32(0), owner, int64(1))
}

// seal adds the checksum and the end mark.
func (s *snapshot) seal() []byte {
	s.put("/")
	s.put(int64(adler32.Checksum(s.Bytes())), "/")
	return s.Bytes()
}

// withCounter restarts a server with nothing but an empty container at path, under the
// root, whose next child gets this number.
func withCounter(t *testing.T, z *backends.ZooKeeper, path string, next int32) {
	t.Helper()
	dir := stopEmpty(t, z)
	s := &snapshot{}
	s.put(uint32(0x5a4b534e), int32(2), int64(-1)) // "ZKSN", version, database
	s.put(int32(0))                                // sessions
	s.put(int32(1), int64(1), int32(1), int32(zk.PermAll), "world", "anyone")
	s.node("", 3, 0)
	s.node("/zookeeper", 1, 0)
	s.node("/zookeeper/quota", 0, 0)
	s.node(filepath.Dir(path), 1, 0)
	s.node(path, next, math.MinInt64) // the mark of a container
	if err := os.WriteFile(filepath.Join(dir, "snapshot.10"), s.seal(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := z.Restart(); err != nil {
		t.Fatal(err)
	}
}

// stopEmpty stops a server and removes its data, which is in the directory that it returns.
func stopEmpty(t *testing.T, z *backends.ZooKeeper) (dir string) {
	t.Helper()
	conf, err := z.Ask("conf")
	if err != nil {
		t.Fatal(err)
	}
	dir = parseTable(conf, "=")["dataDir"]
	if err := z.Stop(); err != nil {
		t.Fatal(err)
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.*"))
	if err != nil || len(old) == 0 {
		t.Fatalf("state of the server in %q: %q, %v", dir, old, err)
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A server comes back without its data. A client that only looks, in a session without a lock, is
// told that this session is over, and goes on in another: the server has refused it as one that
// knows more, and a watch told nothing any more.
func TestRebuiltStore(t *testing.T) {
	t.Parallel()
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	writes := newSite(t, calm, nil, z)
	testkit.Release(t, writes.lock(t, "a"))
	if err := writes.Close(); err != nil {
		t.Fatal(err)
	}
	b := patient(t, nil, z.Addr)
	t.Cleanup(func() { b.Close() })
	stands, ended := make(chan struct{}, 10), make(chan error, 1)
	go func() { ended <- b.Watch(t.Context(), "a", func() { stands <- struct{}{} }) }()
	testkit.Await(t, "the watch", stands)
	if _, err := b.List(t.Context(), "a", 0); err != nil {
		t.Fatal(err)
	}
	stopEmpty(t, z)
	if err := z.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := testkit.Await(t, "the end of the watch", ended); err == nil || t.Context().Err() != nil {
		t.Errorf("the watch: %v", err)
	}
	if all, err := b.List(testkit.Context(t), "a", 0); err != nil || len(all) != 0 {
		t.Errorf("listed %+v, %v", all, err)
	}
}

// The last numbers before 2^31: the counter stops there, and without care every client after
// would hold at once.
func TestNumbersUsedUp(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	withCounter(t, z, "/hasp/a", math.MaxInt32-3)
	s, other := newSite(t, calm, nil, z), newSite(t, calm, nil, z)
	last := uint64(0)
	grown := func(l *hasp.Lease) *hasp.Lease {
		t.Helper()
		if l.Token() <= last {
			t.Errorf("token %d after %d", l.Token(), last)
		}
		last = l.Token()
		return l
	}
	testkit.Release(t, grown(s.lock(t, "a"))) // ...44
	held := grown(s.lock(t, "a"))             // ...45
	waiting := other.queue(t, "a")            // ...46
	for range 2 {                             // ...47, and again
		c := newSite(t, calm, nil, z)
		if _, err := c.Mutex("a").Lock(t.Context()); !errors.Is(err, driver.ErrRefused) {
			t.Fatalf("with a number that is not one: %v", err)
		}
	}
	if es := s.entries(t, "a"); len(es) != 2 {
		t.Errorf("entries %+v", es)
	}
	testkit.Release(t, held)
	testkit.Release(t, grown(testkit.Granted(t, waiting)))
	for range 3 { // the first of these finds the queue empty, and begins a new count
		testkit.Release(t, grown(s.lock(t, "a")))
		testkit.Release(t, grown(other.lock(t, "a")))
	}
}
