package kubelock_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

// serviceAccount makes one in the namespace default, and returns a token of it.
func (c cluster) serviceAccount(t testing.TB, name string) string {
	t.Helper()
	c.ask(t, http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", object{"metadata": object{"name": name}})
	return c.tokenOf(t, name)
}

// The manifests give a service account what locks need, and not more; before it doctor and errors
// say what is missing.
func TestManifests(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "hasp-locks"
	token := c.serviceAccount(t, "hasp")
	open := func(token string, retention time.Duration) driver.Backend {
		b, err := kubelock.New(c.config(token), &kubelock.Options{Retention: retention}) // in the default namespace
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	before := open(token, 0)
	client := testkit.ClientOn(t, before, hasp.WithTTL(ttl))
	if _, err := client.Mutex("a").TryLock(testkit.Context(t)); !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "Role") {
		t.Errorf("without rights: %v", err)
	}
	found := testkit.Findings(t, before)
	testkit.WantFinding(t, found, "rights", driver.Bad, "no right to get, list, watch, create, update, delete")
	for _, subject := range []string{"leases", "quota", "webhooks", "priority"} {
		testkit.WantFinding(t, found, subject, driver.Info, "not seen")
	}

	text := backends.Kustomize(t, "../../dev/packaging/kubernetes")
	objects := c.applied(t, text)
	testkit.Eventually(t, "the Role works", func() bool {
		l, err := client.Mutex("a").TryLock(testkit.Context(t))
		if err != nil {
			return false
		}
		testkit.Release(t, l)
		return true
	})
	found = testkit.Findings(t, before)
	testkit.WantFinding(t, found, "rights", driver.Info, "get, list, watch, create, update and delete")
	testkit.WantFinding(t, found, "leases", driver.Info, "1 of hasp's, none of other programs")

	// Everything that a client does: wait, publish, list, evict, sweep.
	second := testkit.ClientOn(t, open(token, 2*time.Second), hasp.WithTTL(ttl))
	l := testkit.Lock(t, client, "b")
	waiter := testkit.Locking(t, second, "b")
	if err := client.Evict(testkit.Context(t), "b", testkit.Entries(t, client, "b")[0].ID, "maintenance"); err != nil {
		t.Errorf("evict: %v", err)
	}
	testkit.Lost(t, l, hasp.ReasonDenied)
	l = testkit.Granted(t, waiter)
	testkit.Eventually(t, "the sweep", func() bool {
		status, _ := c.try(t, http.MethodGet, leases(ns)+"/a", nil)
		return status == http.StatusNotFound
	})
	testkit.Release(t, l)

	// Elsewhere it may nothing.
	elsewhere, err := kubelock.New(c.config(token), &kubelock.Options{Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := testkit.ClientOn(t, elsewhere).Mutex("a").TryLock(testkit.Context(t)); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("in another namespace: %v", err)
	}
	c.manifests(t, text, objects)
}

// Without the right to watch a waiter asks once a second.
func TestWithoutWatch(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "unwatched"
	c.namespace(t, ns)
	token := c.withRights(t, ns, "blind", []string{"get", "list", "create", "update"})
	n := &counter{seen: map[string]int{}}
	client := c.client(t, ns, func(r *restConfig) { r.BearerToken = token }, between(n.note))
	testkit.WantFinding(t, testkit.Findings(t, client.Backend()), "rights", driver.Bad, "no right to watch, delete")
	held := testkit.Lock(t, c.client(t, ns), "a")
	began := time.Now()
	waiter := testkit.Locking(t, client, "a")
	time.Sleep(3 * time.Second)
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, waiter))
	n.mu.Lock()
	defer n.mu.Unlock()
	if most := int(time.Since(began)/time.Second) + 2; n.seen["WATCH"] > most {
		t.Errorf("%d watches were asked for in %s", n.seen["WATCH"], time.Since(began))
	}
}

// What doctor sees with the right to look.
func TestDoctor(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "doctor"
	c.namespace(t, ns)
	admin := c.open(t, ns)
	t.Cleanup(func() { admin.Close() })
	found := testkit.Findings(t, admin)
	testkit.WantFinding(t, found, "version", driver.Info, "v1.37.2")
	testkit.WantFinding(t, found, "rights", driver.Info, "delete")
	testkit.WantFinding(t, found, "leases", driver.Info, "0 of hasp's, none of other programs")
	testkit.WantFinding(t, found, "quota", driver.Info, "none bounds")
	testkit.WantFinding(t, found, "webhooks", driver.Info, "none is asked")
	testkit.WantFinding(t, found, "priority", driver.Info, "exempt")
	testkit.WantFinding(t, found, "locks", driver.Info, "the store's own versions")

	c.create(t, ns, "controller", object{"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "renewTime": stamp(time.Now())})
	quotas := "/api/v1/namespaces/" + ns + "/resourcequotas"
	c.ask(t, http.MethodPost, quotas, object{"metadata": object{"name": "few"}, "spec": object{"hard": object{"count/leases.coordination.k8s.io": "1"}}})
	c.ask(t, http.MethodPatch, quotas+"/few/status", object{"status": object{"hard": object{"count/leases.coordination.k8s.io": "1"}, "used": object{"count/leases.coordination.k8s.io": "1"}}})
	found = testkit.Findings(t, admin)
	testkit.WantFinding(t, found, "leases", driver.Info, "controller")
	testkit.WantFinding(t, found, "quota", driver.Warn, "the quota few allows 1")

	// A webhook that is never asked, since its namespace has none of its labels.
	const hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	c.ask(t, http.MethodPost, hooks, object{"metadata": object{"name": "policy"}, "webhooks": []any{object{
		"name": "policy.example.com", "sideEffects": "None", "admissionReviewVersions": []string{"v1"}, "failurePolicy": "Ignore",
		"clientConfig":      object{"url": "https://127.0.0.1:1/"},
		"namespaceSelector": object{"matchLabels": object{"none": "none"}},
		"rules":             []any{object{"apiGroups": []string{"*"}, "apiVersions": []string{"*"}, "resources": []string{"*"}, "operations": []string{"*"}}},
	}}})
	testkit.WantFinding(t, testkit.Findings(t, admin), "webhooks", driver.Warn, "policy")

	// A user of no level that is separate.
	c.ask(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", object{
		"metadata": object{"name": "looks"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{object{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "locker"}},
	})
	b, err := kubelock.New(c.config(backends.KubeUser), &kubelock.Options{Namespace: "kube-system"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	c.create(t, "kube-system", "election", object{"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "renewTime": stamp(time.Now())})
	testkit.Eventually(t, "the right to look", func() bool { return testkit.Findings(t, b)["rights"].Level == driver.Info })
	found = testkit.Findings(t, b)
	testkit.WantFinding(t, found, "priority", driver.Warn, "global-default")
	testkit.WantFinding(t, found, "leases", driver.Bad, "the cluster's controllers elect here")
}
