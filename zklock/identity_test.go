package zklock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
)

func identityOf(t testing.TB, o *Options, hosts ...string) (string, error) {
	t.Helper()
	with := *o
	if with.ConnectTimeout == 0 {
		with.ConnectTimeout = 5 * defaultConnectTimeout // as patient does, for several servers as well
	}
	b := patient(t, &with, hosts...)
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	id, err := b.Identity(ctx)
	if len(id) > 200 {
		t.Errorf("an identity of %d bytes", len(id))
	}
	return id, err
}

// One store has one identity however it is addressed and whichever client asks first; what is another
// queue has another.
func TestStoreIdentity(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	_, port, _ := strings.Cut(z.Addr, ":")
	root := "/deep/" + uniqueName(t)

	// The first ask at once.
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			var err error
			if ids[i], err = identityOf(t, &Options{Root: root}, z.Addr); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	same := map[string]*Options{
		"another host name":        {Root: root},
		"two servers":              {Root: root},
		"with a user":              {Root: root, User: "ana", Password: "s3cret"},
		"readable by every client": {Root: root, User: "ana", Password: "s3cret", ACL: ACLCreatorReadable},
		"Curator's other dialect":  {Root: root, Dialect: DialectCuratorRW},
		"another connect time-out": {Root: root, ConnectTimeout: 9 * time.Second},
	}
	hosts := map[string][]string{"another host name": {"localhost:" + port}, "two servers": {"localhost:" + port, z.Addr}}
	for what, o := range same {
		at := hosts[what]
		if at == nil {
			at = []string{z.Addr}
		}
		id, err := identityOf(t, o, at...)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		if id != ids[0] || id == "" {
			t.Errorf("identities of one store: %q", ids)
			break
		}
	}

	other := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	seen := map[string]string{ids[0]: "the first"}
	for what, o := range map[string]*Options{
		"another root": {Root: root + "/b"}, "no root": {Root: "/"}, "strategy node": {Root: root, Strategy: StrategyNode},
		"kazoo's dialect": {Root: root, Dialect: DialectKazoo}, "plain names": {Root: root, PlainNames: true},
		"another ensemble": {Root: root},
	} {
		at := z.Addr
		if what == "another ensemble" {
			at = other.Addr
		}
		id, err := identityOf(t, o, at)
		if err != nil || seen[id] != "" {
			t.Errorf("%s has the identity %q, of %s: %v", what, id, seen[id], err)
		}
		seen[id] = what
	}

	// It is no lock.
	b := patient(t, &Options{Root: root, PlainNames: true}, z.Addr)
	defer b.Close()
	if err := b.Names(t.Context(), "", func(name string) bool { t.Errorf("listed %q", name); return true }); err != nil {
		t.Error(err)
	}
	if _, err := b.List(t.Context(), identityNode, 0); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a lock of that name: %v", err)
	}
}

// A client that may not make nodes reads the identity that another client has made, and is told why
// there is none before that; so is a client that may not make the root.
func TestStoreIdentityOfReader(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a, root := admin(t, z), "/"+uniqueName(t)
	readOnly := append(zk.DigestACL(zk.PermAll, "ana", "s3cret"), zk.WorldACL(zk.PermRead)...)
	if _, err := a.Create(root, nil, zk.FlagPersistent, readOnly); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Options{{Root: root}, {Root: root + "/deeper"}} {
		if id, err := identityOf(t, o, z.Addr); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("under %s: %q, %v", o.Root, id, err)
		}
	}
	made, err := identityOf(t, &Options{Root: root, User: "ana", Password: "s3cret"}, z.Addr)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := identityOf(t, &Options{Root: root}, z.Addr); id != made || err != nil {
		t.Errorf("a reader is told %q, %v; it is %q", id, err, made)
	}

	// What others have put there is not taken for one.
	root += "-other"
	for _, node := range []string{root, root + "/" + identityNode} {
		if _, err := a.Create(node, []byte("127.0.0.1"), zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	if id, err := identityOf(t, &Options{Root: root}, z.Addr); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("of another's node: %q, %v", id, err)
	}
}

// A root that is missing and may not be made is told at once; the strategy of one node asked
// for it again and again.
func TestRootNotOurs(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a, root := admin(t, z), "/"+uniqueName(t)
	if _, err := a.Create(root, nil, zk.FlagPersistent, zk.WorldACL(zk.PermRead)); err != nil {
		t.Fatal(err)
	}
	for _, strategy := range []Strategy{StrategyQueue, StrategyNode} {
		s := newSite(t, calm, &Options{Root: root + "/a/b", Strategy: strategy}, z)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := s.Mutex("m").Lock(ctx); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("strategy %s: %v", strategy, err)
		}
		cancel()
	}
}
