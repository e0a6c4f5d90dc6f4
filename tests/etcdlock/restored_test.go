package etcdlock_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// S5: the store is put back to an earlier state: entries that it has confirmed since are gone,
// those that have left are back, and revisions come again. Renewals succeed, as the leases were
// there already, and TTLs are so long that nothing ends by itself. Who holds what was forgotten
// is told, and who waits gets the lock.
func TestStoreIsPutBack(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		dir := t.TempDir()
		data, kept := filepath.Join(dir, "data"), filepath.Join(dir, "kept")
		o.Config = map[string]any{"data-dir": data}
		e := backends.StartEtcd(t, o)
		url := storeURL([]*backends.Etcd{e})
		holder, waiter := testkit.Client(t, url, hasp.WithTTL(calm)), testkit.Client(t, url, hasp.WithTTL(calm))
		before := testkit.Lock(t, holder, "before")
		testkit.Release(t, testkit.Lock(t, waiter, "warm"))
		restart := func(meanwhile func() error) {
			t.Helper()
			if err := errors.Join(e.Stop(), meanwhile(), e.Restart()); err != nil {
				t.Fatal(err)
			}
		}
		restart(func() error { return os.CopyFS(kept, os.DirFS(data)) })

		raw := client(t, e.Addr)
		var after *hasp.Lease
		testkit.Eventually(t, "locked after the restart", func() (ok bool) {
			l, err := holder.Mutex("after").Lock(ctx(t))
			after = l
			return err == nil
		})
		for i := range 50 { // so that revisions come again only much later
			testkit.Must[*clientv3.PutResponse](t)(raw.Put(ctx(t), "other", fmt.Sprint(i)))
		}
		if !before.Held() || !after.Held() {
			t.Fatalf("a restart alone is no loss: %v, %v", before.Err(), after.Err())
		}
		got := make(chan *hasp.Lease, 1)
		go func() {
			l, err := waiter.Mutex("before").Lock(ctx(t))
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		testkit.Eventually(t, "one waits", func() bool {
			q, err := holder.Inspect(ctx(t), "before")
			return err == nil && len(q.Waiters) == 1
		})
		restart(func() error { return errors.Join(os.RemoveAll(data), os.Rename(kept, data)) })
		await(t, "the holder of what was forgotten is told", after.Context().Done())
		// What was there is held or told as lost, as the store has used fewer revisions or not.
		if err := before.Release(ctx(t)); err != nil && !errors.Is(err, hasp.ErrLost) {
			t.Errorf("release: %v", err)
		}
		if l := <-got; l != nil {
			testkit.Release(t, l)
		}
	})
}

// The same where the server ends so soon after the entry that no watch has been asked for: its first
// stream is one of the store that was put back.
func TestPutBackBeforeTheFirstWatch(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		dir := t.TempDir()
		data, kept := filepath.Join(dir, "data"), filepath.Join(dir, "kept")
		o.Config = map[string]any{"data-dir": data}
		e := backends.StartEtcd(t, o)
		url := storeURL([]*backends.Etcd{e})
		var clients []*hasp.Client
		for range 8 {
			c := testkit.Client(t, url, hasp.WithTTL(calm))
			testkit.Release(t, testkit.Lock(t, c, "warm")) // its lease is in the copy
			clients = append(clients, c)
		}
		if err := errors.Join(e.Stop(), os.CopyFS(kept, os.DirFS(data)), e.Restart()); err != nil {
			t.Fatal(err)
		}
		raw := client(t, e.Addr)
		for i := range 50 {
			testkit.Must[*clientv3.PutResponse](t)(raw.Put(ctx(t), "other", fmt.Sprint(i)))
		}
		var all []*hasp.Lease
		for i, c := range clients {
			testkit.Eventually(t, "it is connected again", func() bool { _, err := c.Inspect(ctx(t), "warm"); return err == nil })
			all = append(all, testkit.Lock(t, c, fmt.Sprint("forgotten", i)))
		}
		if err := errors.Join(e.Kill(), os.RemoveAll(data), os.Rename(kept, data), e.Restart()); err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			await(t, "the holder of what was forgotten is told", l.Context().Done())
		}
	})
}
