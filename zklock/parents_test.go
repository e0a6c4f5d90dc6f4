package zklock

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// A name that was never used costs no round trip more than another: its node, the entry and the
// list are all requested before any answer has come.
func TestNewNameTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	for _, o := range []*Options{nil, {Dialect: DialectKazoo}} {
		s, name := newSite(t, calm, o, backends.SharedZooKeeper(t)), uniqueName(t)
		testkit.Release(t, s.lock(t, name+"-other")) // the root exists
		asked := s.record(t, name)
		s.net[0].Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Hold})
		got := testkit.Locking(t, s.Client, name)
		testkit.Eventually(t, "three requests without an answer", func() bool { return len(asked.work()) >= 3 })
		s.net[0].Set(faultnet.Down, faultnet.Rule{})
		testkit.Release(t, <-got)
		var ops []int32
		for _, a := range asked.work() {
			ops = append(ops, a.op)
		}
		make := int32(opCreateContainer)
		if o != nil {
			make = opCreate
		}
		if want := []int32{make, opCreate, opList, 2}; !slices.Equal(ops, want) {
			t.Errorf("%+v: requests %v, want %v", o, ops, want)
		}
	}
}

// What is lost of the three leaves one entry all the same.
func TestNewNameAnswerLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, calm, nil, backends.SharedZooKeeper(t))
	testkit.Release(t, s.lock(t, uniqueName(t)))
	for what, match := range map[string]func([]byte) bool{
		"node":  func(chunk []byte) bool { return bytes.Contains(chunk, []byte{0, 0, 0, opCreateContainer}) },
		"entry": onLock(opCreate),
	} {
		name := uniqueName(t) + what
		answerLost(t, s, match, func() {
			held := s.lock(t, name)
			if es := s.entries(t, name); len(es) != 1 || es[0].ID != held.ID() || es[0].Seq != held.Token() {
				t.Errorf("%s: entries %+v, holding %s with token %d", what, es, held.ID(), held.Token())
			}
			testkit.Release(t, held)
		})
	}
}

// A root that was there and is no more is made again.
func TestRootRemoved(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	root := "/" + uniqueName(t)
	s, a := newSite(t, calm, &Options{Root: root}, z), admin(t, z)
	testkit.Release(t, s.lock(t, "first"))
	for _, node := range []string{root + "/first", root} {
		if err := a.Delete(node, -1); err != nil && !errors.Is(err, zk.ErrNoNode) { // the server removes empty containers
			t.Fatal(err)
		}
	}
	testkit.Release(t, s.lock(t, "second"))
	testkit.Release(t, s.lock(t, "first"))
}
