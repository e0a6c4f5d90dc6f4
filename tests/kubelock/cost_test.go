package kubelock_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

// counter counts a client's requests by method; a watch is "WATCH".
type counter struct {
	mu   sync.Mutex
	seen map[string]int
}

func (n *counter) note(r *http.Request) {
	method := r.Method
	if r.URL.Query().Get("watch") != "" {
		method = "WATCH"
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[method]++
}

// spent returns what f has cost, as text.
func (n *counter) spent(f func()) string {
	n.mu.Lock()
	n.seen = map[string]int{}
	n.mu.Unlock()
	f()
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprint(n.seen)
}

// A free lock is one read and one write, a new name one more, a release one write; so is a renewal.
func TestCost(t *testing.T) {
	c := shared(t)
	t.Parallel()
	n := &counter{}
	config := c.config(backends.KubeAdmin)
	between(n.note)(config)
	// A TTL of an hour: no renewal comes between.
	b, err := kubelock.New(config, &kubelock.Options{Namespace: c.namespace(t, "cost")})
	if err != nil {
		t.Fatal(err)
	}
	client := testkit.ClientOn(t, b, hasp.WithTTL(time.Hour))
	var l *hasp.Lease
	for _, x := range []struct {
		what, want string
		do         func()
	}{
		{"a new name", "map[GET:1 POST:1 PUT:1]", func() { l = testkit.Lock(t, client, "new") }},
		{"release", "map[PUT:1]", func() { testkit.Release(t, l) }},
		{"a free lock", "map[GET:1 PUT:1]", func() { l = testkit.Lock(t, client, "new") }},
		{"publish", "map[PUT:1]", func() {
			testkit.Release(t, l)
			e, err := client.Election("new").Campaign(testkit.Context(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			l = e.Lease
			n.mu.Lock()
			clear(n.seen)
			n.mu.Unlock()
			if err := e.Publish(testkit.Context(t), []byte("v")); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		if got := n.spent(x.do); got != x.want {
			t.Errorf("%s cost %s, want %s", x.what, got, x.want)
		}
	}
	testkit.Release(t, l)
}

// A renewal is one PUT for each lock that is held; the list is the sweep's, once in six hours.
func TestCostOfRenewal(t *testing.T) {
	c := shared(t)
	t.Parallel()
	n := &counter{seen: map[string]int{}}
	client := c.client(t, "cost", between(n.note))
	l := testkit.Lock(t, client, "renewed")
	puts := func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.seen[http.MethodPut]
	}
	testkit.Eventually(t, "a renewal, with the sweep", func() bool { return puts() > 1 })
	before := c.lease(t, "cost", "renewed").ResourceVersion
	got := n.spent(func() { testkit.Eventually(t, "the next renewal", func() bool { return puts() > 0 }) })
	if got != "map[PUT:1]" {
		t.Errorf("a renewal cost %s", got)
	}
	testkit.Eventually(t, "the renewal's write", func() bool { return c.lease(t, "cost", "renewed").ResourceVersion != before })
	testkit.Release(t, l)
}

// When a holder dies, the next one has the lock after its TTL and 1 %, not later than a second
// after that. A busy machine may miss that once.
func TestKilledHolder(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const most = ttl + ttl/100 + time.Second
	var took []time.Duration
	for i := range 3 {
		name := fmt.Sprint("killed-", i)
		proxy := testkit.Proxy(t, c.Addr)
		victim := c.client(t, "killed", func(r *restConfig) { r.Host = "https://" + proxy.Addr() })
		testkit.Lock(t, victim, name)
		waiter := testkit.Locking(t, c.client(t, "killed"), name)
		before := c.lease(t, "killed", name).ResourceVersion
		testkit.Eventually(t, "a renewal, which the waiter sees", func() bool { return c.lease(t, "killed", name).ResourceVersion != before })
		proxy.Partition()
		began := time.Now()
		l := testkit.Granted(t, waiter)
		took = append(took, time.Since(began))
		testkit.Release(t, l)
		if took[i] <= most {
			break
		}
	}
	t.Logf("the next holder after %s", took)
	if last := took[len(took)-1]; last > most {
		t.Errorf("the next holder came after %s, want %s at most", took, most)
	}
}

// Renewals have connections that no watch shares: over HTTP/2 one that has died is found after 45
// seconds, by all.
func TestConnections(t *testing.T) {
	c := shared(t)
	t.Parallel()
	var mu sync.Mutex
	major := map[string]int{}
	client := c.client(t, "cost", func(r *restConfig) {
		r.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				reply, err := next.RoundTrip(r)
				mu.Lock()
				defer mu.Unlock()
				if kind := r.Method; err == nil {
					if r.URL.Query().Get("watch") != "" {
						kind = "WATCH"
					}
					major[kind] = reply.ProtoMajor
				}
				return reply, err
			})
		})
	})
	held := testkit.Lock(t, c.client(t, "cost"), "connections")
	waiter := testkit.Locking(t, client, "connections")
	testkit.Eventually(t, "a watch", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return major["WATCH"] != 0
	})
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, waiter))
	mu.Lock()
	defer mu.Unlock()
	if major["PUT"] != 1 || major["WATCH"] != 2 {
		t.Errorf("HTTP's versions: %v", major)
	}
}

// The client library repeats no request, and holds none back: a server that answers 429 with
// Retry-After is asked once, and hundreds of requests need no time. (client-go's own: ten attempts,
// and five requests a second.)
func TestNoRetries(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "retries"
	n := &counter{}
	token := c.serviceAccount(t, "flood")
	c.namespace(t, ns)
	c.ask(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/rolebindings", object{
		"metadata": object{"name": "flood"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{object{"kind": "ServiceAccount", "namespace": "default", "name": "flood"}},
	})
	client := c.client(t, ns, func(r *restConfig) { r.BearerToken = token }, between(n.note))
	names := func() (err error) {
		for _, e := range client.Names(testkit.Context(t), "") {
			err = e
		}
		return err
	}
	testkit.Eventually(t, "the right to list", func() bool { n.spent(func() {}); return names() == nil })
	began := time.Now()
	n.spent(func() {
		for range 400 {
			if err := names(); err != nil {
				t.Error(err)
			}
		}
	})
	if took := time.Since(began); took > testkit.Patience { // at five a second it is 80 s
		t.Errorf("400 requests took %s", took)
	}
	c.ask(t, http.MethodPost, collections["PriorityLevelConfiguration"], object{"metadata": object{"name": "flood"}, "spec": object{
		"type": "Limited", "limited": object{"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": object{"type": "Reject"}},
	}})
	c.ask(t, http.MethodPost, collections["FlowSchema"], object{"metadata": object{"name": "flood"}, "spec": object{
		"priorityLevelConfiguration": object{"name": "flood"}, "matchingPrecedence": 10,
		"rules": []any{object{
			"subjects":      []any{object{"kind": "ServiceAccount", "serviceAccount": object{"namespace": "default", "name": "flood"}}},
			"resourceRules": []any{object{"apiGroups": []string{"*"}, "resources": []string{"*"}, "verbs": []string{"*"}, "namespaces": []string{"*"}}},
		}},
	}})
	defer c.occupy(t, token, ns)()
	testkit.Eventually(t, "429", func() bool { n.spent(func() {}); return names() != nil })
	var err error
	if got := n.spent(func() { err = names() }); err == nil || got != "map[GET:1]" {
		t.Errorf("%s for an answer of 429: %v", got, err)
	}
}
