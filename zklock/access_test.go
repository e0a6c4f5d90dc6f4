package zklock

import (
	"context"
	"crypto/tls"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

func openAt(t testing.TB, storeURL string) (*hasp.Client, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := hasp.Open(ctx, storeURL)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// What is wrong with a setting is told before any I/O, and without what may be secret.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	for _, u := range []string{
		"zookeeper:", "zookeeper://", "zookeeper://h1,,h2", "zookeeper://:2181", "zookeeper://h:0", "zookeeper:h",
		"zookeeper://h/zookeeper", "zookeeper://h/zookeeper/x", "zookeeper://h/a//b", "zookeeper://h/a/", "zookeeper://h/a/../b",
		"zookeeper://h?strategy=herd", "zookeeper://h?dialect=java", "zookeeper://h?names=raw", "zookeeper://h?acl=none",
		"zookeeper://h?acl=creator", "zookeeper://h?acl=read", "zookeeper://h?strategy=node&dialect=kazoo",
		"zookeeper://h?connect_timeout=0s", "zookeeper://h?connect_timeout=soon", "zookeeper://h?conect_timeout=1s",
		"zookeeper://user@h", "zookeeper://:s3cret@h", "zookeeper://us%3Aer:s3cret@h",
		"zookeeper://h?tls=false&ca=/nowhere", "zookeeper://h?tls=true&ca=/nowhere", "zookeeper://h?tls=true&cert=/nowhere",
	} {
		_, err := openAt(t, u)
		if !errors.Is(err, hasp.ErrInvalid) {
			t.Errorf("%s: %v", u, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error shows the password: %v", u, err)
		}
	}
	if _, err := New(nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no servers: %v", err)
	}
	b, err := New([]string{"a", "[::1]:99"}, &Options{User: "u", Password: "s3cret", Root: "/x"})
	if err != nil || b.String() != "zookeeper://a:2181,[::1]:99/x" {
		t.Errorf("%v, %v", b, err)
	}
}

// A wrong address is told at once and by name.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	began := time.Now()
	_, err := openAt(t, "zookeeper://user:s3cret@127.0.0.1:1,127.0.0.1:2/x")
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("open: %v", err)
	}
	b, err := open([]string{"127.0.0.1:1", "127.0.0.1:2"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = b.Open(t.Context(), driver.SessionOptions{TTL: 10 * time.Second, Gone: func(string, error) {}})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:") || errors.Is(err, driver.ErrGone) {
		t.Errorf("session: %v", err)
	}
	if took := time.Since(began); took > patience/2 { // the call's own end is patience
		t.Errorf("told after %s", took)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{TLS: true})
	// Accepted, a handshake takes as long as the machine is busy; refused, too.
	params := url.Values{"ca": {z.CA}, "connect_timeout": {(patience / 2).String()}}.Encode()
	c, err := openAt(t, "zookeeper://"+z.Addr+"/tls?"+params)
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Mutex("a").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testkit.Release(t, l)

	plain := backends.SharedZooKeeper(t)
	for what, u := range map[string]string{
		"a certificate of an unknown authority": "zookeeper://" + z.Addr + "?tls=true",
		"the wrong name":                        "zookeeper://" + z.Addr + "?servername=example.org&" + params,
		"TLS to a plaintext server":             "zookeeper://" + plain.Addr + "?" + params,
		"plaintext to a TLS server":             "zookeeper://" + z.Addr,
	} {
		began := time.Now()
		if _, err := openAt(t, u); err == nil {
			t.Errorf("%s was accepted", what)
		} else if took := time.Since(began); took > 3*patience/4 { // an attempt ends after half of it, the call after all
			t.Errorf("%s: refused after %s: %v", what, took, err)
		}
	}
	// The same for a session, which connects by another way.
	b := patient(t, &Options{TLS: &tls.Config{}}, z.Addr)
	_, _, err = b.Open(t.Context(), driver.SessionOptions{TTL: 10 * time.Second, Gone: func(string, error) {}})
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a session over TLS to a server with an unknown authority: %v", err)
	}
}

// With a user and a password nodes belong to that identity: others are refused, and told
// why.
func TestIdentity(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	root := "/" + strings.ToLower(uniqueName(t))
	ana := &Options{Root: root, User: "ana", Password: "s3cret"}
	s, also := newSite(t, calm, ana, z), newSite(t, calm, ana, z)
	held := s.lock(t, "a")
	waiting := also.queue(t, "a")
	a := admin(t, z)
	if err := a.AddAuth("digest", []byte("ana:s3cret")); err != nil {
		t.Fatal(err)
	}
	acl, _, err := a.GetACL(root)
	if err != nil || len(acl) != 1 || acl[0].Scheme != "digest" || !strings.HasPrefix(acl[0].ID, "ana:") {
		t.Errorf("ACL of the root: %+v, %v", acl, err)
	}
	for _, o := range []*Options{{Root: root}, {Root: root, User: "ana", Password: "guess"}, {Root: root, Strategy: StrategyNode}} {
		other := newSite(t, calm, o, z)
		_, err := other.Mutex("b").Lock(t.Context())
		if !errors.Is(err, driver.ErrRefused) || strings.Contains(err.Error(), "guess") {
			t.Errorf("another identity: %v", err)
		}
		if _, err := other.Inspect(t.Context(), "a"); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("another identity inspects: %v", err)
		}
	}
	// The identity is proven again on a new connection.
	s.net[0].Cut()
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, waiting))

	// Others may look where that is wanted.
	open := &Options{Root: root + "-read", User: "ana", Password: "s3cret", ACL: ACLCreatorReadable}
	s = newSite(t, calm, open, z)
	held = s.lock(t, "a")
	other := newSite(t, calm, &Options{Root: open.Root}, z)
	if q, err := other.Inspect(t.Context(), "a"); err != nil || len(q.Holders) != 1 {
		t.Errorf("inspected %+v, %v", q, err)
	}
	if err := other.b.Evict(t.Context(), "a", held.ID(), ""); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("another identity evicts: %v", err)
	}
	testkit.Release(t, held)
}

// Strategy Node: when our node has been deleted and another's stands in its place, neither
// a release nor a publication changes that.
func TestNodeOfAnother(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	for _, o := range []*Options{
		{Strategy: StrategyNode, Root: "/node-open"},
		{Strategy: StrategyNode, Root: "/node-ana", User: "ana", Password: "s3cret"}, // the same user, even
	} {
		b := patient(t, o, z.Addr)
		name := uniqueName(t)
		old, next := openSession(t, b, calm).Ticket(testkit.RequestAs(name, "old")), openSession(t, b, calm).Ticket(testkit.RequestAs(name, "next"))
		if v, err := old.Enqueue(t.Context()); err != nil || !v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
		g := &old.(*nodeTicket).ephemeralNode
		g.mu.Lock() // as if the event of the deletion were still on its way
		g.selfWatched = true
		g.selfWatchTimer.Stop()
		g.mu.Unlock()
		if err := b.Evict(t.Context(), name, "old", ""); err != nil {
			t.Fatal(err)
		}
		v, err := next.Enqueue(t.Context())
		if err != nil || !v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
		if err := g.Publish(t.Context(), []byte("forged")); !errors.Is(err, driver.ErrGone) {
			t.Errorf("published in another's node: %v", err)
		}
		if err := old.Leave(t.Context()); !errors.Is(err, driver.ErrGone) {
			t.Errorf("release of another's node: %v", err)
		}
		es, err := b.List(t.Context(), name, 0)
		if err != nil || len(es) != 1 || es[0].ID != "next" || len(es[0].Value) != 0 || es[0].Seq != v.Token {
			t.Errorf("listed %+v, %v", es, err)
		}
		if err := next.Leave(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Names are node names where that is asked for, at the very path.
func TestPlainNames(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s := newSite(t, calm, &Options{Root: "/", PlainNames: true}, z)
	name := "Member-" + uniqueName(t)
	held := s.lock(t, name)
	if names, _, err := admin(t, z).Children("/" + name); err != nil || len(names) != 1 {
		t.Errorf("children %q, %v", names, err)
	}
	found := false
	for n, err := range s.Names(t.Context(), "Member-") {
		if err != nil {
			t.Fatal(err)
		}
		found = found || n == name
	}
	if !found {
		t.Error("the name is not listed")
	}
	testkit.Release(t, held)
	if _, err := s.Mutex("a/b").Lock(t.Context()); !errors.Is(err, hasp.ErrUnsupported) {
		t.Errorf("a name that is a path: %v", err)
	}
}

// A hard quota of the servers is a refusal, and is told at once: the library has no name for it,
// and it was taken for an outage.
func TestQuota(t *testing.T) {
	t.Parallel()
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{Config: []string{"enforceQuota=true"}})
	s, a := newSite(t, 10*time.Second, &Options{Root: "/q"}, z), admin(t, z)
	testkit.Release(t, s.lock(t, "a"))
	for _, n := range []struct{ path, data string }{
		{"/zookeeper/quota/q", ""},
		{"/zookeeper/quota/q/zookeeper_limits", "count=-1,bytes=-1,countHardLimit=2"},
		{"/zookeeper/quota/q/zookeeper_stats", "count=0,bytes=0"},
	} {
		if _, err := a.Create(n.path, []byte(n.data), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Mutex("a").Lock(t.Context()); !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "quota") {
		t.Errorf("over the quota: %v", err)
	}
}

// A TTL of more milliseconds than the library can send is cut by the servers, like every long one.
func TestVeryLongTTL(t *testing.T) {
	t.Parallel()
	b := patient(t, nil, backends.SharedZooKeeper(t).Addr)
	if s := openSession(t, b, 30*24*time.Hour); s.timeout() <= 0 {
		t.Errorf("granted %s", s.timeout())
	}
}
