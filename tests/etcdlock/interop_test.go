package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// etcdctlLock starts `etcdctl lock` and returns a channel that closes when it holds, and
// what ends it. etcdctl prints its key when it holds, and releases on SIGTERM.
func etcdctlLock(t *testing.T, addr, key string) (held <-chan struct{}, end func()) {
	t.Helper()
	cmd := etcdctl(t, addr, "lock", key)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	got := make(chan struct{})
	go func() {
		if line, err := bufio.NewReader(out).ReadString('\n'); err == nil && strings.HasPrefix(line, key+"/") {
			close(got)
		}
	}()
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			_ = cmd.Wait()                          // killed by a signal is how it ends
		}
	}
	t.Cleanup(end)
	return got, end
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited without success for: %s", what)
	}
}

func TestEtcdctlExcludesUs(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	e := backends.SharedEtcd(t)
	c := testkit.Client(t, storeURL([]*backends.Etcd{e}))
	held, end := etcdctlLock(t, e.Addr, "hasp/interop-1")
	await(t, "etcdctl lock holds", held)

	_, err := c.Mutex("interop-1").TryLock(ctx(t))
	if !errors.Is(err, hasp.ErrBusy) {
		t.Fatalf("TryLock while etcdctl holds: %v", err)
	}
	if _, err := c.RWMutex("interop-1").TryRLock(ctx(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Fatalf("TryRLock while etcdctl holds: %v", err)
	}
	if _, err := c.Semaphore("interop-1", 3).TryAcquire(ctx(t), 1); !errors.Is(err, hasp.ErrMismatch) {
		t.Fatalf("a semaphore under the name of etcdctl's mutex: %v", err)
	}
	q, err := c.Inspect(ctx(t), "interop-1")
	if err != nil || len(q.Holders) != 1 || !q.Holders[0].Whole() || q.Holders[0].Owner.Raw == "" {
		t.Fatalf("Inspect of etcdctl's lock: %+v, %v", q, err)
	}

	got, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		l, err := c.Mutex("interop-1").Lock(ctx(t))
		if err == nil {
			close(got)
			err = l.Release(context.Background())
		}
		if err != nil {
			t.Error(err)
		}
	}()
	testkit.Eventually(t, "we wait behind etcdctl", func() bool {
		q, err := c.Inspect(ctx(t), "interop-1")
		return err == nil && len(q.Waiters) == 1
	})
	select {
	case <-got:
		t.Fatal("locked while etcdctl holds")
	case <-time.After(50 * time.Millisecond):
	}
	end()
	await(t, "our turn after etcdctl", got)
	<-done
}

func TestWeExcludeEtcdctl(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	e := backends.SharedEtcd(t)
	c := testkit.Client(t, storeURL([]*backends.Etcd{e}))
	reader := testkit.Must[*hasp.Lease](t)(c.RWMutex("interop-2").RLock(ctx(t)))
	writer := make(chan *hasp.Lease, 1)
	go func() {
		l, err := c.Mutex("interop-2").Lock(ctx(t))
		if err != nil {
			t.Error(err)
		}
		writer <- l
	}()
	testkit.Eventually(t, "a writer waits", func() bool {
		q, err := c.Inspect(ctx(t), "interop-2")
		return err == nil && len(q.Waiters) == 1
	})
	held, _ := etcdctlLock(t, e.Addr, "hasp/interop-2")
	testkit.Eventually(t, "etcdctl waits", func() bool {
		q, err := c.Inspect(ctx(t), "interop-2")
		return err == nil && len(q.Waiters) == 2
	})
	testkit.Release(t, reader)
	l := <-writer
	select {
	case <-held:
		t.Fatal("etcdctl locked while we hold")
	case <-time.After(100 * time.Millisecond):
	}
	testkit.Release(t, l)
	await(t, "etcdctl's turn after us", held)
}

// concurrency.Mutex is the lock of etcd's own package; the keys are the same.
func TestConcurrencyMutexTakesTurnsWithUs(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	e := backends.SharedEtcd(t)
	c := testkit.Client(t, storeURL([]*backends.Etcd{e}))
	s := testkit.Must[*concurrency.Session](t)(concurrency.NewSession(client(t, e.Addr)))
	defer s.Close()
	shared, turns := 0, make(chan error, 2)
	const each = 20
	go func() {
		for range each {
			m := concurrency.NewMutex(s, "hasp/interop-3")
			if err := m.Lock(ctx(t)); err != nil {
				turns <- err
				return
			}
			shared++ // the race detector sees a lock that does not exclude
			if err := m.Unlock(ctx(t)); err != nil {
				turns <- err
				return
			}
		}
		turns <- nil
	}()
	go func() {
		for range each {
			if err := c.Do(ctx(t), "interop-3", func(context.Context) error { shared++; return nil }); err != nil {
				turns <- err
				return
			}
		}
		turns <- nil
	}()
	for range 2 {
		if err := <-turns; err != nil {
			t.Fatal(err)
		}
	}
	if shared != 2*each {
		t.Errorf("counted %d of %d", shared, 2*each)
	}
}

// What etcd's package gets wrong by its prefix: a lock called a/b does not block a client that
// wants a, although its key is under a's. Nor is a key without a lease, which nothing
// would ever remove.
func TestForeignKeysThatAreNoEntries(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	c, raw := testkit.Client(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	held, _ := etcdctlLock(t, e.Addr, "hasp/interop-4/nested")
	await(t, "etcdctl holds interop-4/nested", held)
	for _, key := range []string{"hasp/interop-4/garbage", "hasp/interop-4/~r~garbage", "hasp/interop-4/~3~garbage", "hasp/interop-4/~~", "hasp/interop-4/"} {
		testkit.Must[*clientv3.PutResponse](t)(raw.Put(ctx(t), key, "{"))
		defer raw.Delete(context.Background(), key)
	}
	if q, err := c.Inspect(ctx(t), "interop-4"); err != nil || len(q.Holders) != 0 {
		t.Errorf("Inspect: %+v, %v", q, err)
	}
	m, rw, s := c.Mutex("interop-4"), c.RWMutex("interop-4"), c.Semaphore("interop-4", 3)
	for what, lock := range map[string]func(context.Context) (*hasp.Lease, error){
		"Lock": m.Lock, "TryLock": m.TryLock, "RLock": rw.RLock, "TryRLock": rw.TryRLock,
		"Acquire":    func(ctx context.Context) (*hasp.Lease, error) { return s.Acquire(ctx, 2) },
		"TryAcquire": func(ctx context.Context) (*hasp.Lease, error) { return s.TryAcquire(ctx, 2) },
	} {
		l, err := lock(ctx(t))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		testkit.Release(t, l)
	}
	// And they do not hide those who are in the way.
	l := testkit.Must[*hasp.Lease](t)(m.Lock(ctx(t)))
	if _, err := m.TryLock(ctx(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("TryLock of a held lock: %v", err)
	}
	if _, err := rw.TryRLock(ctx(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("TryRLock of a held lock: %v", err)
	}
	if _, err := s.Acquire(ctx(t), 1); !errors.Is(err, hasp.ErrMismatch) {
		t.Errorf("Acquire under the name of a held mutex: %v", err)
	}
	testkit.Release(t, l)
	p := testkit.Must[*hasp.Lease](t)(s.Acquire(ctx(t), 2))
	if _, err := s.TryAcquire(ctx(t), 2); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("TryAcquire of too much: %v", err)
	}
	if _, err := rw.RLock(ctx(t)); !errors.Is(err, hasp.ErrMismatch) {
		t.Errorf("RLock under the name of a semaphore: %v", err)
	}
	testkit.Release(t, p)
}
