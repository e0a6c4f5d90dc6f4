package kubelock_test

import (
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

type restConfig = rest.Config

// The stamp of each renewal is a whole second later than the one before at least, also where that is
// ahead of the clock: which then was set back.
func TestStampsStep(t *testing.T) {
	c := shared(t)
	t.Parallel()
	client := c.client(t, "stamps")
	l, err := client.Election("step").Campaign(testkit.Context(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	last := c.lease(t, "stamps", "step").Spec.RenewTime.Time
	look := func(what string) {
		t.Helper()
		now := c.lease(t, "stamps", "step").Spec.RenewTime.Time
		if now.Unix() <= last.Unix() {
			t.Errorf("%s has the stamp %s after %s: no later second", what, now, last)
		}
		last = now
	}
	for _, value := range []string{"a", "b", "c"} { // three writes in one second
		if err := l.Publish(testkit.Context(t), []byte(value)); err != nil {
			t.Fatal(err)
		}
		look("a value")
	}
	// A renewal of the past, by a clock that was an hour ahead.
	held := c.lease(t, "stamps", "step")
	last = time.Now().Add(time.Hour).Truncate(time.Second).Add(300 * time.Millisecond)
	record := held.Annotations["hasplock.github.io/record"]
	before := field(record, `"renewed":"`)
	c.ask(t, http.MethodPatch, leases("stamps")+"/step", object{
		"metadata": object{"annotations": object{"hasplock.github.io/record": strings.Replace(record, before, stamp(last), 1)}},
		"spec":     object{"renewTime": stamp(last)},
	})
	testkit.Eventually(t, "a renewal", func() bool { return c.lease(t, "stamps", "step").Spec.RenewTime.Time != last })
	look("the renewal")
	testkit.Release(t, l.Lease)
}

// What client-go reads of a lock that is held, and of one that was released.
func TestFormat(t *testing.T) {
	c := shared(t)
	t.Parallel()
	client := c.client(t, "format")
	l := testkit.Lock(t, client, "format")
	entries := testkit.Entries(t, client, "format")
	held := c.lease(t, "format", "format")
	if s := held.Spec; len(entries) != 1 || !strings.HasSuffix(*s.HolderIdentity, entries[0].ID) || *s.LeaseDurationSeconds != 3 || *s.LeaseTransitions != 1 || s.AcquireTime == nil {
		t.Errorf("held by %v: %+v", entries, s)
	}
	testkit.Release(t, l)
	free := c.lease(t, "format", "format")
	if s := free.Spec; *s.HolderIdentity != "" || *s.LeaseDurationSeconds < 1 {
		t.Errorf("released: %+v", s)
	}
	testkit.Release(t, testkit.Lock(t, client, "format"))
	if again := c.lease(t, "format", "format"); again.UID != held.UID || *again.Spec.LeaseTransitions != 2 {
		t.Errorf("taken again it is another Lease, or counted otherwise: %+v", again)
	}
}

// TTLs are whole seconds, from 3 on.
func TestTTL(t *testing.T) {
	c := shared(t)
	t.Parallel()
	for d, ok := range map[time.Duration]bool{2 * time.Second: false, 3500 * time.Millisecond: false, 3 * time.Second: true, 5 * time.Second: true} {
		b := c.open(t, "format")
		client, err := hasp.New(b, hasp.WithTTL(d))
		if err == nil {
			var l *hasp.Lease
			if l, err = client.Mutex("ttl-" + d.String()).TryLock(testkit.Context(t)); err == nil {
				testkit.Release(t, l)
			}
			client.Close()
		} else {
			b.Close()
		}
		if ok != (err == nil) || err != nil && !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("TTL %s: %v", d, err)
		}
	}
}

// A Lease of another program: who holds it is shown, and waited for; a value or a token it has not,
// although an annotation of ours survives in it. Free is one without an identity, for any time
// that it says, and one whose time is over; and what is not ours is never swept.
func TestForeignLeases(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "foreign"
	client := c.client(t, ns)
	term, err := client.Election("taken").Campaign(testkit.Context(t), []byte("ours"))
	if err != nil {
		t.Fatal(err)
	}
	token := term.Token()
	testkit.Release(t, term.Lease)
	// client-go takes it, and leaves the annotations alone.
	c.ask(t, http.MethodPatch, leases(ns)+"/taken", object{"spec": object{"holderIdentity": "pod-7", "leaseDurationSeconds": 3600, "renewTime": stamp(time.Now())}})
	e := testkit.Entries(t, client, "taken")
	if len(e) != 1 || e[0].ID != "pod-7" || !strings.Contains(fmt.Sprint(e[0].Owner), "pod-7") || len(e[0].Value) != 0 || e[0].Token != 0 {
		t.Errorf("the foreign holder is shown as %+v", e)
	}
	if _, err := client.Mutex("taken").TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("a foreign holder's lock: %v", err)
	}
	// It releases.
	c.ask(t, http.MethodPatch, leases(ns)+"/taken", object{"spec": object{"holderIdentity": "", "leaseDurationSeconds": 1}})
	l := testkit.Lock(t, client, "taken")
	if l.Token() <= token {
		t.Errorf("token %d after %d", l.Token(), token)
	}
	testkit.Release(t, l)

	c.create(t, ns, "nil", object{"leaseDurationSeconds": 3600, "renewTime": stamp(time.Now())})
	c.create(t, ns, "empty", object{"holderIdentity": "", "leaseDurationSeconds": 3600, "renewTime": stamp(time.Now())})
	c.create(t, ns, "untouched", object{"holderIdentity": ""})
	c.create(t, ns, "mark", object{"holderIdentity": "hasp/", "leaseDurationSeconds": 3600, "renewTime": stamp(time.Now())})
	if _, err := client.Mutex("mark").TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("a holder whose identity is our mark without an ID: %v", err)
	}
	for _, name := range []string{"nil", "empty"} {
		l, err := client.Mutex(name).TryLock(testkit.Context(t))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		testkit.Release(t, l)
	}
	// Over for an hour by its stamp: only a look of its duration proves it.
	c.create(t, ns, "dead", object{"holderIdentity": "pod-8", "leaseDurationSeconds": 3, "renewTime": stamp(time.Now().Add(-time.Hour))})
	began := time.Now()
	l, err = client.Mutex("dead").TryLock(testkit.Context(t))
	if took := time.Since(began); err != nil || took < 3*time.Second {
		t.Errorf("a dead holder's: %v after %s", err, took)
	} else {
		testkit.Release(t, l)
	}
	// In the future for an hour: its clock is wrong, and it may live.
	c.create(t, ns, "future", object{"holderIdentity": "pod-9", "leaseDurationSeconds": 3, "renewTime": stamp(time.Now().Add(time.Hour))})
	began = time.Now()
	if l, err = client.Mutex("future").TryLock(testkit.Context(t)); err != nil || time.Since(began) < 3*time.Second {
		t.Errorf("a dead holder's whose clock was ahead: %v after %s", err, time.Since(began))
	} else {
		testkit.Release(t, l)
	}
}

// Free Leases that hasp has made are swept after their retention, those of others never.
func TestSweep(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "sweep"
	c.create(t, ns, "others", object{"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": stamp(time.Now().Add(-48 * time.Hour))})
	c.create(t, ns, "bare", object{})
	client := c.client(t, ns)
	testkit.Release(t, testkit.Lock(t, client, "old"))
	b, err := kubelock.New(c.config(backends.KubeAdmin), &kubelock.Options{Namespace: ns, Retention: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	sweeper := testkit.ClientOn(t, b, hasp.WithTTL(ttl))
	l := testkit.Lock(t, sweeper, "kept")
	testkit.Eventually(t, "the sweep of what is old", func() bool {
		status, _ := c.try(t, http.MethodGet, leases(ns)+"/old", nil)
		return status == http.StatusNotFound
	})
	for _, name := range []string{"others", "bare", "kept"} {
		c.lease(t, ns, name)
	}
	testkit.Release(t, l)
}

// A Lease that is used for something else is refused, and left as it is.
func TestMismatch(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "mismatch"
	client := c.client(t, ns)
	owner := object{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "12345678-1234-1234-1234-123456789012"}
	c.namespace(t, ns)
	for name, l := range map[string]object{
		"strategy":  {"metadata": object{"name": "strategy"}, "spec": object{"strategy": "OldestEmulationVersion"}},
		"preferred": {"metadata": object{"name": "preferred"}, "spec": object{"strategy": "OldestEmulationVersion", "preferredHolder": "p"}},
		"owned":     {"metadata": object{"name": "owned", "ownerReferences": []any{owner}}},
		"newer":     {"metadata": object{"name": "newer", "annotations": object{"hasplock.github.io/record": `{"hasp":99}`}}},
		"garbage":   {"metadata": object{"name": "garbage", "annotations": object{"hasplock.github.io/record": "x"}}},
	} {
		c.ask(t, http.MethodPost, leases(ns), l)
		before := c.lease(t, ns, name)
		if _, err := client.Mutex(name).TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrMismatch) && !(name == "newer" && errors.Is(err, hasp.ErrInvalid)) {
			t.Errorf("%s: %v", name, err)
		}
		if after := c.lease(t, ns, name); after.ResourceVersion != before.ResourceVersion {
			t.Errorf("%s was changed", name)
		}
	}
	if err := firstError(client.Names(testkit.Context(t), "")); !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "has format 99, of a newer hasp") {
		t.Errorf("the names: %v", err)
	}
	if _, err := kubelock.New(c.config(backends.KubeAdmin), &kubelock.Options{Namespace: "kube-node-lease"}); !errors.Is(err, driver.ErrMismatch) {
		t.Errorf("kube-node-lease: %v", err)
	}
}

func firstError(names iter.Seq2[string, error]) error {
	for _, err := range names {
		if err != nil {
			return err
		}
	}
	return nil
}

// Names that Kubernetes does not take, and those that begin as a hashed one does, are hashed, and
// stand whole in the list; a Lease that claims a name which is not its own is refused.
func TestNames(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "names"
	client := c.client(t, ns)
	names := map[string]bool{ // whether the Lease has the same name
		"plain": true, "with.dots-2": true, "Orders/42": false, "hasp-x": false, "trailing-": false, "ü": false, strings.Repeat("n", 254): false,
	}
	for name, same := range names {
		l := testkit.Lock(t, client, name)
		status, _ := c.try(t, http.MethodGet, leases(ns)+"/"+strings.ReplaceAll(name, "/", "%2f"), nil)
		if same != (status == http.StatusOK) {
			t.Errorf("%q: a Lease of that name: %d", name, status)
		}
		defer testkit.Release(t, l)
	}
	listed := 0
	for name, err := range client.Names(testkit.Context(t), "") {
		if err != nil {
			t.Fatal(err)
		}
		if _, ours := names[name]; ours {
			listed++
		}
	}
	if listed != len(names) {
		t.Errorf("%d of %d names are listed", listed, len(names))
	}
	// A copy of a Lease under another name.
	copied := c.lease(t, ns, "plain")
	c.ask(t, http.MethodPost, leases(ns), object{"metadata": object{"name": "copy", "annotations": copied.Annotations}, "spec": copied.Spec})
	if _, err := client.Mutex("copy").TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrMismatch) {
		t.Errorf("a copied Lease: %v", err)
	}
}

// A name that is locked again and again has stamps of the present: a try beside it is refused at
// once, and need not observe a holder that seems to come from the future.
func TestStampsOfManyLocks(t *testing.T) {
	c := shared(t)
	t.Parallel()
	client, other := c.client(t, "stamps"), c.client(t, "stamps")
	for range 10 {
		testkit.Release(t, testkit.Lock(t, client, "often"))
	}
	l := testkit.Lock(t, client, "often")
	defer testkit.Release(t, l)
	if ahead := time.Until(c.lease(t, "stamps", "often").Spec.RenewTime.Time); ahead > time.Second {
		t.Errorf("the stamp is ahead by %s", ahead)
	}
	if _, err := other.Mutex("often").TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("a try: %v", err)
	}
}
