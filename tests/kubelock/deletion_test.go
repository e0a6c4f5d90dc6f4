package kubelock_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// kubectl delete is an eviction: told at the next renewal, never re-created by that, and the next
// token is higher.
func TestDeletedByKubectl(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "deleted"
	client, other := c.client(t, ns), c.client(t, ns)
	l := testkit.Lock(t, client, "a")
	c.ask(t, http.MethodDelete, leases(ns)+"/a", nil)
	testkit.Lost(t, l, hasp.ReasonDenied)
	if status, _ := c.try(t, http.MethodGet, leases(ns)+"/a", nil); status != http.StatusNotFound {
		t.Errorf("the Lease is there again: %d", status)
	}
	next := testkit.Lock(t, other, "a")
	if next.Token() <= l.Token() {
		t.Errorf("token %d after %d", next.Token(), l.Token())
	}
	testkit.Release(t, next)
}

// A waiter finds a deletion by its watch.
func TestDeletionWakesWaiters(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "deleted"
	holder := c.client(t, ns, func(*restConfig) {})
	testkit.Lock(t, holder, "w")
	var selected atomic.Bool
	waiter := testkit.Locking(t, c.client(t, ns, between(func(r *http.Request) {
		q := r.URL.Query()
		selected.Store(selected.Load() || q.Get("watch") != "" && q.Get("fieldSelector") == "metadata.name=w")
	})), "w")
	time.Sleep(200 * time.Millisecond) // most often its watch stands by now; it gets the lock in any case
	c.ask(t, http.MethodDelete, leases(ns)+"/w", nil)
	testkit.Release(t, testkit.Granted(t, waiter))
	if !selected.Load() {
		t.Error("no watch of this one Lease")
	}
}

// A Lease may be created by PUT, and of one that does not exist the server ignores the
// resourceVersion: a late renewal fails by its uid. The first half is the control.
func TestPutNeverCreates(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "put"
	path := leases(c.namespace(t, ns)) + "/late"
	body := func(metadata object) object {
		metadata["name"] = "late"
		return object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
	}
	status, answer := c.try(t, http.MethodPut, path, body(object{"resourceVersion": "1"}))
	if status != http.StatusCreated {
		t.Fatalf("PUT of an absent Lease with a resourceVersion: %d %v; is it refused nowadays?", status, answer)
	}
	uid := answer["metadata"].(object)["uid"]
	c.ask(t, http.MethodDelete, path, nil)
	if status, _ = c.try(t, http.MethodPut, path, body(object{"resourceVersion": "1", "uid": uid})); status != http.StatusConflict {
		t.Errorf("PUT of an absent Lease with a uid: %d", status)
	}
	// And hasp sends both, with each PUT.
	var puts, bare int
	client := c.client(t, ns, between(func(r *http.Request) {
		if r.Method == http.MethodPut {
			puts++
			if text := bodyOf(r); !strings.Contains(text, `"uid":"`) || !strings.Contains(text, `"resourceVersion":"`) {
				bare++
			}
		}
	}))
	l := testkit.Lock(t, client, "both")
	testkit.Release(t, l)
	if puts < 2 || bare > 0 {
		t.Errorf("%d of %d PUTs lack uid or resourceVersion", bare, puts)
	}
}

// While a namespace is being deleted nothing new is created, and a Lease that its controller has
// deleted is not created again.
func TestNamespaceTerminating(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "terminating"
	client := c.client(t, ns)
	l := testkit.Lock(t, client, "a")
	c.ask(t, http.MethodDelete, "/api/v1/namespaces/"+ns, nil)
	c.ask(t, http.MethodDelete, leases(ns)+"/a", nil) // as the controller of namespaces does, which does not run here
	testkit.Lost(t, l, hasp.ReasonDenied)
	_, err := client.Mutex("b").TryLock(testkit.Context(t))
	if err == nil || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("a new name: %v", err)
	}
	for _, name := range []string{"a", "b"} {
		if status, _ := c.try(t, http.MethodGet, leases(ns)+"/"+name, nil); status != http.StatusNotFound {
			t.Errorf("%s was created: %d", name, status)
		}
	}
}

// A namespace that is not there is named.
func TestNoNamespace(t *testing.T) {
	c := shared(t)
	t.Parallel()
	namespaces.Store(c.Addr+"missing", true) // client makes none
	client := c.client(t, "missing")
	_, err := client.Mutex("a").TryLock(testkit.Context(t))
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "kubectl create namespace missing") {
		t.Errorf("error: %v", err)
	}
}

// Labels and annotations of others: they stay, and neither holder nor waiter is wrong about it: the
// lock is held as long as its holder lives, and over as soon when it is dead.
func TestRelabelled(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "relabelled"
	proxy := testkit.Proxy(t, c.Addr)
	holder := c.client(t, ns, func(r *restConfig) { r.Host = "https://" + proxy.Addr() })
	l := testkit.Lock(t, holder, "a")
	n := 0
	relabel := func() {
		n++
		c.ask(t, http.MethodPatch, leases(ns)+"/a", object{"metadata": object{"labels": object{"n": fmt.Sprint(n)}, "annotations": object{"example.com/n": fmt.Sprint(n)}}})
	}
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		relabel()
		if !l.Held() {
			t.Fatalf("lost: %v", l.Err())
		}
	}
	waiter := testkit.Locking(t, c.client(t, ns), "a")
	proxy.Partition() // it dies, and its Lease is relabelled on and on
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				relabel()
			}
		}
	}()
	next := testkit.Granted(t, waiter) // while it is relabelled
	close(stop)
	<-done
	if got := c.lease(t, ns, "a"); got.Labels["n"] == "" || got.Annotations["example.com/n"] == "" {
		t.Errorf("what others had put on it is gone: %v %v", got.Labels, got.Annotations)
	}
	testkit.Release(t, next)
}
