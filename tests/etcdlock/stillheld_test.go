package etcdlock_test

import (
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// S3: a write under the guard is applied while the lock is held, and never after, however
// convinced the writer is.
func TestStillHeld(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	c, raw := testkit.Client(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	b := c.Backend().(*etcdlock.Backend)
	write := func(l *hasp.Lease, value string) bool {
		t.Helper()
		resp, err := raw.Txn(ctx(t)).If(b.StillHeld(l)).Then(clientv3.OpPut("guarded", value)).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return resp.Succeeded
	}
	first := testkit.Lock(t, c, "a/StillHeld")
	if !write(first, "first") {
		t.Error("the holder may not write")
	}
	remove(t, raw, "a%2f%53till%48eld", first.ID())
	if write(first, "late") {
		t.Error("a write after the loss was applied")
	}
	second := testkit.Lock(t, c, "a/StillHeld")
	if write(first, "late") || !write(second, "second") {
		t.Error("the guard mistakes one holder for another")
	}
	testkit.Release(t, second)
	if write(second, "late") {
		t.Error("a write after the release was applied")
	}
	reader := testkit.Must[*hasp.Lease](t)(c.RWMutex("a/StillHeld").RLock(ctx(t)))
	if write(reader, "shared") {
		t.Error("a reader's lease guards a write")
	}
	testkit.Release(t, reader)
}

func TestNilClient(t *testing.T) {
	t.Parallel()
	if _, err := etcdlock.New(nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a nil client: %v", err)
	}
	c := client(t, backends.SharedEtcd(t).Addr)
	if _, err := etcdlock.New(c, &etcdlock.Options{Prefix: "a", NoPrefix: true}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("two prefixes: %v", err)
	}
}
