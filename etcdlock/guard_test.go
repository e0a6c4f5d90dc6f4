package etcdlock_test

import (
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
)

// S3: a write under the guard is applied while the lock is held, and never after, however
// convinced the writer is.
func TestGuard(t *testing.T) {
	e := backends.SharedEtcd(t)
	c, raw := locks(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	b := c.Backend().(*etcdlock.Backend)
	write := func(l *hasp.Lease, value string) bool {
		t.Helper()
		resp, err := raw.Txn(ctx(t)).If(b.Guard(l)).Then(clientv3.OpPut("guarded", value)).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return resp.Succeeded
	}
	first := must[*hasp.Lease](t)(c.Mutex("a/Guard").Lock(ctx(t)))
	if !write(first, "first") {
		t.Error("the holder may not write")
	}
	remove(t, raw, "a%2f%47uard", first.ID())
	if write(first, "late") {
		t.Error("a write after the loss was applied")
	}
	second := must[*hasp.Lease](t)(c.Mutex("a/Guard").Lock(ctx(t)))
	if write(first, "late") || !write(second, "second") {
		t.Error("the guard mistakes one holder for another")
	}
	release(t, second)
	if write(second, "late") {
		t.Error("a write after the release was applied")
	}
	reader := must[*hasp.Lease](t)(c.RWMutex("a/Guard").RLock(ctx(t)))
	if write(reader, "shared") {
		t.Error("a reader's lease guards a write")
	}
	release(t, reader)
}

// A healthy cluster has nothing that is bad, and one of a single old member is told.
func TestDoctor(t *testing.T) {
	worst := func(b *etcdlock.Backend) (bad, warn int, subjects map[string]bool) {
		t.Helper()
		subjects = map[string]bool{}
		for _, f := range must[[]driver.Finding](t)(b.Diagnose(ctx(t))) {
			t.Logf("%s: %s: %s (%s)", f.Level, f.Subject, f.Text, f.Cure)
			subjects[f.Subject] = true
			switch f.Level {
			case driver.Bad:
				bad++
			case driver.Warn:
				warn++
			}
			if (f.Level == driver.Info) != (f.Cure == "") {
				t.Errorf("a %s with the cure %q", f.Level, f.Cure)
			}
		}
		return bad, warn, subjects
	}
	cluster := backends.StartEtcdCluster(t, backends.EtcdOptions{})
	b := backend(t, storeURL(cluster.Members))
	bad, warn, subjects := worst(b)
	if bad+warn > 0 {
		t.Errorf("%d bad, %d warnings of a healthy cluster", bad, warn)
	}
	for _, s := range []string{"version", "leader", "topology", "db size", "alarms", "lease"} {
		if !subjects[s] {
			t.Errorf("not a word about %s", s)
		}
	}
	if _, warn, _ := worst(backend(t, storeURL(cluster.Members[:1]))); warn == 0 {
		t.Error("one endpoint of three, and no warning")
	}
	if err := cluster.Members[1].Kill(); err != nil {
		t.Fatal(err)
	}
	if _, warn, _ := worst(b); warn == 0 {
		t.Error("a member is down, and no warning")
	}
	old := backends.StartEtcd(t, backends.EtcdOptions{Old: true, Config: map[string]any{"election-timeout": 3000, "heartbeat-interval": 300}})
	if _, warn, _ := worst(backend(t, storeURL([]*backends.Etcd{old}))); warn < 3 { // alone, old, long leases
		t.Errorf("%d warnings", warn)
	}
}

func TestNilClient(t *testing.T) {
	if _, err := etcdlock.Open(nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a nil client: %v", err)
	}
	c := client(t, backends.SharedEtcd(t).Addr)
	if _, err := etcdlock.Open(c, &etcdlock.Options{Prefix: "a", NoPrefix: true}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("two prefixes: %v", err)
	}
}
