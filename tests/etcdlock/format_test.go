package etcdlock_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A prefix of another format is refused by all that would lock there, and by lists, at the first
// use. The controls are the prefix without a number, which gets ours, and with ours.
func TestOtherFormat(t *testing.T) {
	t.Parallel()
	addr := backends.SharedEtcd(t).Addr
	raw := client(t, addr)
	for i, number := range []string{"2", "0", "x"} {
		prefix := fmt.Sprintf("format%d/", i)
		open := func() *hasp.Client {
			return testkit.Client(t, "etcd://"+addr+"?prefix="+prefix, hasp.WithTTL(calm))
		}
		testkit.Must[any](t)(raw.Put(ctx(t), prefix+"~format", number))
		c := open()
		_, try := c.Mutex("a").TryLock(ctx(t))
		_, lock := c.Mutex("a").Lock(ctx(t))
		_, look := c.Inspect(ctx(t), "a")
		var list error
		for _, err := range c.Names(ctx(t), "") {
			list = err
		}
		for what, err := range map[string]error{"a try": try, "a lock": lock, "a look": look, "the names": list} {
			if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), `this program knows format 1`) ||
				!strings.Contains(err.Error(), fmt.Sprintf("remove the keys that begin with %q", prefix)) {
				t.Errorf("format %s: %s: %v", number, what, err)
			}
		}
		testkit.WantFinding(t, testkit.Findings(t, testkit.Open(t, "etcd://"+addr+"?prefix="+prefix)), "format", driver.Bad, "has format")
		if got := keys(t, raw, prefix); !slices.Equal(got, []string{prefix + "~format"}) {
			t.Errorf("format %s: written was %q", number, got)
		}
		testkit.Must[any](t)(raw.Delete(ctx(t), prefix+"~format"))
		testkit.Release(t, testkit.Lock(t, open(), "a"))
		resp, err := raw.Get(ctx(t), prefix+"~format")
		if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "1" {
			t.Errorf("the first lock has noted %+v, %v", resp, err)
		}
		testkit.Release(t, testkit.Lock(t, open(), "a"))
	}
}

// What is stored of names that have holders, readers, permits and waiters, and that were evicted
// from. A change needs another number.
func TestStoredFormat(t *testing.T) {
	t.Parallel()
	addr := backends.SharedEtcd(t).Addr
	raw, b := client(t, addr), backend(t, "etcd://"+addr+"?prefix=stored/")
	first, second := testkit.Session(t, b, calm, nil), testkit.Session(t, b, calm, nil)
	for i, r := range []driver.Request{
		request("a", "holds", driver.Whole, driver.Whole), request("a", "waits", driver.Whole, driver.Whole),
		request("b", "reads", 1, driver.Whole), request("c", "permits", 2, 3), request("d/e", "gone", driver.Whole, driver.Whole),
	} {
		r.Owner, r.Value, r.Since = "ana", []byte("v"), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		testkit.Entered(t, []driver.Session{first, second}[i%2].Ticket(r))
	}
	if err := b.Evict(ctx(t), "d/e", "gone", "note"); err != nil {
		t.Fatal(err)
	}
	resp := testkit.Must[*clientv3.GetResponse](t)(raw.Get(ctx(t), "stored/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)))
	var stored []string
	for _, kv := range resp.Kvs {
		text := fmt.Sprintf("%s: %s, leased: %t", kv.Key, kv.Value, kv.Lease != 0)
		stored = append(stored, regexp.MustCompile(`\b[0-9a-f]{14,16}\b`).ReplaceAllString(text, "LEASE"))
	}
	testkit.SameFormat(t, "etcd", 1, stored, "0e4a92eb02caf057")
}
