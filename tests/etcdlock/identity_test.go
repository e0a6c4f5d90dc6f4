package etcdlock_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// One cluster is one store, however its URL is spelled: with the members in another order,
// only some of them, other names of the hosts. Another prefix is another store.
func TestIdentity(t *testing.T) {
	t.Parallel()
	cluster := backends.StartEtcdCluster(t, backends.EtcdOptions{})
	addrs := cluster.Addrs()
	turned := slices.Clone(addrs)
	slices.Reverse(turned)
	var named []string
	for _, a := range addrs {
		_, port, err := net.SplitHostPort(a)
		if err != nil {
			t.Fatal(err)
		}
		named = append(named, "localhost:"+port)
	}
	stores := map[string][]string{
		"":                                      {strings.Join(addrs, ","), strings.Join(turned, ","), strings.Join(named, ","), addrs[2] + "/?prefix=hasp/"},
		"prefix=other/":                         {addrs[0], named[1]},
		"prefix=other":                          {addrs[0]},
		"prefix=":                               {addrs[0], turned[1]},
		"prefix=hasp/a/":                        {addrs[0]},
		"prefix=" + strings.Repeat("long", 100): {addrs[0]},
	}
	seen := map[string]string{}
	for query, spellings := range stores {
		var mu sync.Mutex
		ids := map[string]bool{}
		var all sync.WaitGroup
		for _, s := range spellings {
			if query != "" {
				s += "/?" + query
			}
			b := backend(t, "etcd://"+s)
			all.Go(func() { // all at once: none was there before
				id := testkit.Identity(t, b)
				mu.Lock()
				defer mu.Unlock()
				ids[id] = true
			})
		}
		all.Wait()
		if len(ids) != 1 {
			t.Errorf("%q has several identities: %v", query, ids)
		}
		for id := range ids {
			if other, found := seen[id]; found {
				t.Errorf("%q and %q have one identity", query, other)
			}
			seen[id] = query
		}
	}
	c := testkit.Client(t, "etcd://"+addrs[0]+"/?prefix=")
	noNames(t, c)
	testkit.Release(t, testkit.Must[*hasp.Lease](t)(c.Semaphore("~store", 3).Acquire(ctx(t), 3)))
}

// noNames asks again while the store does not answer: the leader may change on a busy machine.
func noNames(t *testing.T, c *hasp.Client) {
	t.Helper()
	testkit.Until(t, "a whole list of names", func() error {
		for name, err := range c.Names(ctx(t), "") {
			if err != nil {
				return err
			}
			t.Errorf("a name without entries: %q", name)
		}
		return nil
	})
}

// Clusters that are set up alike have the same id in etcd's own books. They are two stores.
func TestIdentityOfClustersThatLookAlike(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	alike := backends.EtcdOptions{Config: map[string]any{
		"initial-advertise-peer-urls": "http://127.0.0.1:2380", "initial-cluster": "m0=http://127.0.0.1:2380",
	}}
	var ids []string
	var clusters []uint64
	for range 2 {
		e := backends.StartEtcd(t, alike)
		clusters = append(clusters, testkit.Must[*clientv3.GetResponse](t)(client(t, e.Addr).Get(ctx(t), "any")).Header.ClusterId)
		ids = append(ids, testkit.Identity(t, backend(t, storeURL([]*backends.Etcd{e}))))
	}
	if clusters[0] != clusters[1] {
		t.Fatalf("the clusters do not look alike: %x", clusters)
	}
	if ids[0] == ids[1] {
		t.Errorf("two clusters have the identity %q", ids[0])
	}
}

// Who leads is asked for without reading who waits, also where keys that are no entries are in
// front. What is read is counted in bytes of the server's answers.
func TestListOfTheFirst(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	b, raw := backend(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	for i := range 3 {
		testkit.Must[*clientv3.PutResponse](t)(raw.Put(ctx(t), fmt.Sprint("hasp/first/", i), "no lease, no entry"))
	}
	if list := testkit.Must[[]driver.Entry](t)(b.List(ctx(t), "first", 2)); len(list) != 0 {
		t.Errorf("there is no entry, and listed are %+v", list)
	}
	s := testkit.Session(t, b, calm, nil)
	const n = 300
	for i := range n {
		testkit.Entered(t, s.Ticket(whole("first", fmt.Sprint("f", i))))
	}
	cost := func(limit int) (list []driver.Entry, bytes float64) {
		before := metrics(t, e.Addr)[sentBytes]
		list = testkit.Must[[]driver.Entry](t)(b.List(ctx(t), "first", limit))
		return list, metrics(t, e.Addr)[sentBytes] - before
	}
	all, whole := cost(0)
	if len(all) != n {
		t.Fatalf("%d of %d are listed", len(all), n)
	}
	for _, limit := range []int{1, 2, 3, 7, n - 1, n, n + 1, 10 * n} {
		list, bytes := cost(limit)
		want := all[:min(limit, n)]
		if !slices.EqualFunc(list, want, func(a, b driver.Entry) bool { return a.ID == b.ID && a.Seq == b.Seq }) {
			t.Errorf("the first %d are %d, not those of all", limit, len(list))
		}
		if limit < 8 && bytes > whole/2 {
			t.Errorf("the first %d cost %.0f bytes, all of them %.0f", limit, bytes, whole)
		}
	}
}
