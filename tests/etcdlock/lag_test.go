package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// A session uses its keys again and again, so nearly every key that a client watches has been
// deleted before. A member that has just been continued does not know of that yet: it begins
// a watch at the revision that it knows, and then tells of everything that has happened since,
// the key's past included. Here that is so each time: the member that watches is stopped
// while the past is made, and has so much to catch up with that the watch is there first.

// behind is a cluster of which one member lags as soon as it is continued.
type behind struct {
	*testing.T
	cluster  *backends.EtcdCluster
	lags, at *backends.Etcd // where the test's clients watch, and where they ask
	raw      *clientv3.Client
	holder   *hasp.Client // knows nothing of the member that lags
	steered  *hasp.Client // watches there, and asks elsewhere
	name     string
}

func newBehind(t *testing.T, name string, o backends.EtcdOptions) *behind {
	t.Helper()
	cluster := backends.StartEtcdCluster(t, o)
	lead := leader(t, cluster)
	b := &behind{T: t, cluster: cluster, at: cluster.Members[lead], lags: cluster.Members[(lead+1)%3], name: name}
	b.raw = client(t, b.at.Addr)
	b.holder = testkit.Client(t, "etcd://"+b.at.Addr, hasp.WithTTL(calm))
	// Streams go where the client is connected to. Calls would as well, and are led elsewhere.
	elsewhere := b.raw.ActiveConnection()
	divert := func(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoke(ctx, method, req, reply, elsewhere, opts...)
	}
	b.steered = onClient(t, client(t, b.lags.Addr, grpc.WithChainUnaryInterceptor(divert)), hasp.WithTTL(calm))
	return b
}

// fallBehind stops the member, and lets much happen that it will have to catch up with.
func (b *behind) fallBehind() {
	b.Helper()
	if err := b.lags.Pause(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = b.lags.Resume() }) // else it cannot be ended; it runs most often
	text := strings.Repeat("x", 2000)
	byMany(b, 2000, func(i int) error {
		_, err := b.raw.Put(context.Background(), fmt.Sprint("filler-", i%50), text)
		return err
	})
}

// past has a client use the key of its next lock before, and returns the key.
func (b *behind) past(c *hasp.Client) string {
	b.Helper()
	l := testkit.Must[*hasp.Lease](b)(c.Mutex(b.name).Lock(ctx(b)))
	used := keys(b, b.raw, "hasp/"+b.name+"/")
	testkit.Release(b, l)
	return used[0]
}

// catchUp continues the member and waits until it has told all that happened before: the
// last of its messages is the one that the steered client's waiter of another name gets.
func (b *behind) catchUp() {
	b.Helper()
	last := b.name + "-last"
	l := testkit.Must[*hasp.Lease](b)(b.holder.Mutex(last).Lock(ctx(b)))
	got := make(chan error, 1)
	go func() {
		next, err := b.steered.Mutex(last).Lock(ctx(b))
		if err == nil {
			err = next.Release(ctx(b))
		}
		got <- err
	}()
	b.waits(last)
	if err := b.lags.Resume(); err != nil {
		b.Fatal(err)
	}
	now := testkit.Must[*clientv3.GetResponse](b)(b.raw.Get(ctx(b), "any")).Header.Revision
	testkit.Eventually(b, "the member has caught up", func() bool {
		s := status(b.T, b.lags)
		return s != nil && s.Header.Revision >= now
	})
	testkit.Release(b, l)
	if err := <-got; err != nil {
		b.Fatal(err)
	}
}

// waits waits until one waits, and its watch has most likely been sent.
func (b *behind) waits(name string) {
	b.Helper()
	testkit.Eventually(b, "one waits", func() bool {
		q, err := b.holder.Inspect(ctx(b), name)
		return err == nil && len(q.Waiters) == 1
	})
	time.Sleep(100 * time.Millisecond)
}

// S1: a waiter is told of an earlier deletion of the key that blocks it, and does not take it
// for the holder's departure.
func TestPastOfBlockerIsNoDeparture(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		b := newBehind(t, "past-1", o)
		for range 2 {
			b.fallBehind()
			used := b.past(b.holder)
			handOver{holder: b.holder, waiter: b.steered, name: b.name, meanwhile: func() {
				if k := keys(t, b.raw, "hasp/past-1/"); len(k) != 2 || k[0] != used {
					t.Errorf("the blocker's key has no past: %q, before %q", k, used)
				}
				b.catchUp()
			}}.passes(t)
		}
	})
}

// S6, L4: a holder is told of an earlier deletion of its key. That is no loss; and an
// entry that was taken for lost and is still there would block all others for as long as
// the session lives.
func TestOwnPastIsNoLoss(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		b := newBehind(t, "past-2", o)
		b.fallBehind()
		used := b.past(b.steered)
		l := testkit.Lock(t, b.steered, b.name)
		if k := keys(t, b.raw, "hasp/past-2/"); len(k) != 1 || k[0] != used {
			t.Errorf("the key has no past: %q, before %q", k, used)
		}
		time.Sleep(10 * watched) // its watch has been sent
		b.catchUp()
		if !l.Held() {
			t.Errorf("lost, and the key is there: %v", l.Err())
		}
		if err := l.Release(ctx(t)); err != nil {
			t.Errorf("release: %v", err)
		}
		next, err := b.holder.Mutex(b.name).TryLock(ctx(t))
		if errors.Is(err, hasp.ErrBusy) {
			t.Errorf("no client holds, and none can: %v", err)
		} else if err != nil {
			t.Fatal(err)
		} else {
			testkit.Release(t, next)
		}
	})
}
