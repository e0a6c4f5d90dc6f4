package etcdlock_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// streams counts the watch streams that a member has been asked for.
func streams(t testing.TB, e *backends.Etcd) (n int) {
	t.Helper()
	all := metrics(t, e.Addr)
	for name := range maps.Keys(all) {
		if strings.HasPrefix(name, "grpc_server_started_total{") && strings.Contains(name, `grpc_method="Watch"`) {
			n += int(all[name])
		}
	}
	return n
}

// L7: a user may not read some of the keys any more that its client watches. Those watches
// are refused, again and again; the stream that they share with the others stays open, the others
// are told what happens, and the refused as soon as they may. It was opened anew for each
// refusal, without a pause.
func TestRefusedWatchIsItsOwnTrouble(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		e := guardedBy(t, o, "hasp/good", "hasp/bad", "hasp/~")
		p, root := testkit.Proxy(t, e.Addr), as(t, e, "root")
		// Others' renewals and streams must not be counted, nor be what tells.
		c := testkit.Client(t, "etcd://locks:pa%20ss%2Fword@"+p.Addr()+"/", hasp.WithTTL(calm))
		const n = 20
		var bad [n]*hasp.Lease
		for i := range bad {
			bad[i] = testkit.Must[*hasp.Lease](t)(c.Mutex(fmt.Sprint("bad-", i)).Lock(ctx(t)))
		}
		good := testkit.Lock(t, c, "good")
		testkit.Eventually(t, "all are watched", func() bool { return messages(t, e.Addr)["Watch"] >= n+1 })

		testkit.Must[*clientv3.AuthRoleRevokePermissionResponse](t)(root.RoleRevokePermission(ctx(t), "locks", "hasp/bad", clientv3.GetPrefixRangeEnd("hasp/bad")))
		before, asked := streams(t, e), messages(t, e.Addr)["Watch"]
		p.Cut() // an established watch goes on; a new one is refused
		testkit.Eventually(t, "all are asked for anew", func() bool { return messages(t, e.Addr)["Watch"] >= asked+n+1 })
		const lasts = 4 * time.Second
		time.Sleep(lasts)
		if s := streams(t, e) - before; s > 3 {
			t.Errorf("%d streams in %s", s, lasts)
		}
		// Each by itself: at first, after one second, and after two more; and what it takes to
		// cancel it.
		if m := messages(t, e.Addr)["Watch"] - asked; m > 8*n {
			t.Errorf("%d messages in %s, for %d watches that are refused", m, lasts, n)
		}
		remove(t, root, "good", good.ID())
		await(t, "who may read is told", good.Context().Done())

		if err := permit(t, root, "hasp/bad"); err != nil {
			t.Fatal(err)
		}
		remove(t, root, "bad-7", bad[7].ID())
		await(t, "who may read again is told", bad[7].Context().Done())
		if !bad[8].Held() {
			t.Errorf("lost: %v", bad[8].Err())
		}
	})
}

// A watch was to begin at a revision that has been compacted: it begins anew, alone.
func TestCompactedWatchBeginsAlone(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		e := backends.StartEtcd(t, o)
		raw := client(t, e.Addr)
		s := testkit.Session(t, backend(t, storeURL([]*backends.Etcd{e})), calm, nil)
		var queue []driver.Ticket
		for i := range 60 { // behind more than 50, a watch begins where the queue was read
			k := s.Ticket(whole("compacted-4", fmt.Sprint("c", i)))
			testkit.Entered(t, k)
			queue = append(queue, k)
		}
		testkit.Eventually(t, "the first is watched", func() bool { return messages(t, e.Addr)["Watch"] >= 1 })
		for range 10 {
			testkit.Must[*clientv3.PutResponse](t)(raw.Put(ctx(t), "other", "x"))
		}
		now := testkit.Must[*clientv3.GetResponse](t)(raw.Get(ctx(t), "other"))
		testkit.Must[*clientv3.CompactResponse](t)(raw.Compact(ctx(t), now.Header.Revision, clientv3.WithCompactPhysical()))
		last, done := queue[len(queue)-1], make(chan error, 1)
		go func() {
			v, err := last.Wait(ctx(t))
			if err == nil && !v.Held {
				err = fmt.Errorf("not held")
			}
			done <- err
		}()
		// The watch, and since that was refused its end and another.
		testkit.Eventually(t, "it has begun anew", func() bool { return messages(t, e.Addr)["Watch"] >= 4 })
		for _, k := range queue[:len(queue)-1] {
			if err := k.Leave(ctx(t)); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := streams(t, e); n != 1 {
			t.Errorf("%d streams", n)
		}
	})
}
