package etcdlock_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// putKey puts a key under a name, with a lease or without one.
func putKey(t *testing.T, c *clientv3.Client, key string, leased bool) {
	t.Helper()
	var opts []clientv3.OpOption
	if leased {
		opts = append(opts, clientv3.WithLease(testkit.Must[*clientv3.LeaseGrantResponse](t)(c.Grant(ctx(t), 600)).ID))
	}
	testkit.Must[*clientv3.PutResponse](t)(c.Put(ctx(t), key, "x", opts...))
}

// S1: an answer with keys only does not tell an entry from another key, in a current etcd not even
// the lease. A lock that a foreign key has is not granted, with any name of the key.
func TestLeasedKeyBlocks(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		e := backends.StartEtcd(t, o)
		raw := client(t, e.Addr)
		s := testkit.Session(t, backend(t, storeURL([]*backends.Etcd{e})), calm, nil)
		for name, key := range map[string]string{
			"like-ours": "7587891a2b3c-0", "like-etcdctl": "7587891a2b3c", "imported": "7587891a2b3c-0-4", "strange": "mine",
		} {
			t.Run(name, func(t *testing.T) {
				putKey(t, raw, "hasp/"+name+"/"+key, true)
				got := waitsFor(t, s.Ticket(whole(name, name)))
				for range 4 { // it looks who is in the way
					alive(t, s)
				}
				told := waitsFor(t, s.Ticket(whole(name, name+"-behind"))) // its answer is behind all that was asked
				select {
				case err := <-got:
					t.Fatalf("granted beside a foreign lock (%v)", err)
				case err := <-told:
					t.Fatalf("granted behind a waiter (%v)", err)
				default:
				}
				testkit.Must[*clientv3.DeleteResponse](t)(raw.Delete(ctx(t), "hasp/"+name+"/"+key))
				turn(t, "the turn when it has gone", got)
			})
		}
	})
}

// A key without a lease is no entry, and nothing removes it. It is passed over: at once if it is
// called as no entry is, else after one renewal, or two, by the client that meets it first, and at once
// from then on.
func TestKeyWithoutLeaseDoesNotBlock(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	raw := client(t, e.Addr)
	c := testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(calm))
	putKey(t, raw, "hasp/stray/mine", false)
	putKey(t, raw, "hasp/stray/deeper/7587891a2b3c", true) // of another name
	for range 2 {
		testkit.Release(t, testkit.Lock(t, c, "stray"))
	}
	putKey(t, raw, "hasp/mirrored/7587891a2b3c-0", false)
	b, count := countsWatches(t, e)
	s := testkit.Session(t, b, calm, nil)
	k := s.Ticket(whole("mirrored", "a"))
	got := waitsFor(t, k)
	testkit.Eventually(t, "it is waited for", func() bool { return count.established.Load() == 2 })
	alive(t, s)
	alive(t, s)
	turn(t, "the turn after two renewals", got)
	left(t, k)
	held(t, s.Ticket(whole("mirrored", "b")))
}
