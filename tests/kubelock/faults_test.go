package kubelock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/broken"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

// faults are a server, clients with a network each, and what goes wrong between them.
type faults struct {
	t       *testing.T
	c       cluster
	nets    []*faultnet.Proxy
	clients []*hasp.Client
}

func newFaults(t *testing.T, wrap func(driver.Backend) driver.Backend) *faults {
	t.Helper()
	asked(t)
	f := &faults{t: t, c: cluster{backends.StartKube(t)}}
	f.c.ask(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", object{
		"metadata": object{"name": "locker"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{object{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "locker"}},
	})
	f.c.ask(t, http.MethodPost, collections["PriorityLevelConfiguration"], object{"metadata": object{"name": "nothing"}, "spec": object{
		"type": "Limited", "limited": object{"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": object{"type": "Reject"}},
	}})
	for range 3 {
		proxy := testkit.Proxy(t, f.c.Addr)
		// Not as administrator, who is exempt from priorities.
		b, err := kubelock.New(f.c.through(proxy.Addr(), backends.KubeUser), &kubelock.Options{Namespace: f.c.namespace(t, "faults")})
		if err != nil {
			t.Fatal(err)
		}
		f.nets = append(f.nets, proxy)
		f.clients = append(f.clients, testkit.ClientOn(t, wrap(b), hasp.WithTTL(ttl)))
	}
	return f
}

// must is for what the test does to the server.
func (f *faults) must(err error) {
	if err != nil {
		f.t.Error(err)
	}
}

// overload has the server answer 429 to each request of the clients.
func (f *faults) overload(on bool) {
	const schema = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
	if !on {
		f.c.ask(f.t, http.MethodDelete, schema+"/nothing", nil)
		return
	}
	f.c.ask(f.t, http.MethodPost, schema, object{"metadata": object{"name": "nothing"}, "spec": object{
		"priorityLevelConfiguration": object{"name": "nothing"}, "matchingPrecedence": 10,
		"rules": []any{object{
			"subjects":      []any{object{"kind": "User", "user": object{"name": "locker"}}},
			"resourceRules": []any{object{"apiGroups": []string{"*"}, "resources": []string{"*"}, "verbs": []string{"*"}, "namespaces": []string{"*"}}},
		}},
	}})
}

// compact forgets all old revisions: a watch that begins at one gets 410.
func (f *faults) compact() {
	post := func(path string, question object) (answer struct {
		Header struct{ Revision json.Number }
	}) {
		text, err := json.Marshal(question)
		f.must(err)
		reply, err := http.Post(f.c.Etcd.URL()+path, "application/json", bytes.NewReader(text))
		if err != nil {
			f.t.Error(err)
			return answer
		}
		defer reply.Body.Close()
		f.must(json.NewDecoder(reply.Body).Decode(&answer))
		return answer
	}
	post("/v3/kv/compaction", object{"revision": post("/v3/maintenance/status", object{}).Header.Revision})
}

// one does something wrong, and returns when it is over.
func (f *faults) one() string {
	net := f.nets[rand.N(len(f.nets))]
	some := func() { time.Sleep(rand.N(2 * ttl)) }
	switch kind := rand.N(9); kind {
	case 0:
		f.must(f.c.Kill())
		f.must(f.c.Restart())
		return "server killed"
	case 1:
		f.must(f.c.Restart())
		return "server restarted"
	case 2:
		f.must(f.c.Pause())
		some()
		f.must(f.c.Resume())
		return "server stopped for a while"
	case 3:
		f.overload(true)
		free := f.c.occupy(f.t, backends.KubeUser, "faults")
		some()
		free()
		f.overload(false)
		return "429"
	case 4:
		f.compact()
		net.Cut()
		return "compacted, and a network cut"
	case 5:
		net.Reset()
		return "a network reset"
	case 6:
		select {
		case <-net.Lose(faultnet.Down, 1, faultnet.Contains("HTTP/1.1 ")):
		case <-time.After(ttl):
		}
		return "an answer lost"
	default: // what is held is delivered late
		net.Partition()
		some()
		net.Heal()
		return "a network held"
	}
}

// Three clients, two locks, an elector of client-go's beside one of them, and everything that can go
// wrong between client and server: no two hold at once, tokens rise, and when it is over each gets
// each lock again. (The elector never releases: while the server is away client-go tries to, for
// another RenewDeadline, and tells its leader only then.)
func TestRandomFaults(t *testing.T) {
	f := newFaults(t, func(b driver.Backend) driver.Backend { return b })
	t.Parallel()
	rec, names := history.New(), []string{"a", "b"}
	ctx, stop := context.WithCancel(t.Context())
	w := &recordedhold.Workload{Clients: f.clients, Names: names, TTL: ttl, Rec: rec}
	workers := w.Run(ctx)
	beside := &candidates{t: t, c: f.c, namespace: "faults", name: "a", rec: rec, neverEnds: true}
	workers.Go(func() { beside.others(ctx, "client-go") })
	seen := map[string]int{}
	for end := time.Now().Add(lasts(t)); time.Now().Before(end); {
		time.Sleep(rand.N(ttl))
		seen[f.one()]++
	}
	for _, net := range f.nets {
		net.Heal()
	}
	stop()
	workers.Wait()
	for _, c := range f.clients {
		for _, name := range names {
			testkit.UseDespiteErrors(t, c, name)
		}
	}
	h := testkit.Must[history.History](t)(rec.History())
	for _, v := range history.Exclusion(h) {
		t.Error(v)
	}
	h = slices.DeleteFunc(h, func(o history.Operation) bool { return strings.HasPrefix(o.Client, "client-go") }) // it has no tokens
	for _, v := range history.Check(h, history.Options{Fencing: true}) {
		t.Error(v)
	}
	granted := 0
	for _, o := range h {
		if o.Outcome == history.Granted {
			granted++
		}
	}
	t.Logf("%d grants, client-go led %d times; faults: %v", granted, beside.othersLed.Load(), seen)
	if granted < 10 {
		t.Error("hardly anything was locked")
	}
}

// The control: a client that believes in its locks without renewing them.
func TestRandomFaultsSees(t *testing.T) {
	f := newFaults(t, broken.Liar)
	t.Parallel()
	w := &recordedhold.Workload{Clients: f.clients, Names: []string{"a"}, TTL: ttl, Rec: history.New()}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if seen, err := w.Violated(ctx); err != nil || !seen {
		t.Errorf("nothing was seen: %v", err)
	}
}

// On a silent network a call ends with its context, at once; and when the network is back, the
// connections that died meanwhile are no hindrance.
func TestSilentNetwork(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "silent"
	proxy := testkit.Proxy(t, c.Addr)
	through := func(r *restConfig) { r.Host = "https://" + proxy.Addr() }
	client := c.client(t, ns, through)
	testkit.Release(t, testkit.Lock(t, client, "a"))
	// A request is waited for half of the TTL: of this client's it is longer than this test waits.
	patient := testkit.ClientOn(t, c.client(t, ns, through).Backend(), hasp.WithTTL(4*testkit.Patience))
	testkit.Release(t, testkit.Lock(t, patient, "a"))
	held := testkit.Lock(t, c.client(t, ns), "held")
	waiter := testkit.Locking(t, client, "held")
	testkit.Eventually(t, "its connections", func() bool { return proxy.Stats().Up.Delivered > 2000 })
	proxy.Set(faultnet.Up, faultnet.Rule{Mode: faultnet.Drop}) // and no side is told, for as long as TCP lasts
	for what, ask := range map[string]func(context.Context) error{
		"Lock": func(ctx context.Context) error { _, err := patient.Mutex("a").Lock(ctx); return err },
		"Names": func(ctx context.Context) error {
			for _, err := range patient.Names(ctx, "") {
				return err
			}
			return nil
		},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		ended := make(chan error, 1)
		go func() { ended <- ask(ctx) }()
		if err := testkit.Await(t, "the end of "+what, ended); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
		cancel()
	}
	testkit.Release(t, held)
	proxy.Set(faultnet.Up, faultnet.Rule{}) // what was lost stays lost: the old connections are of no use
	testkit.Release(t, testkit.Granted(t, waiter))
	testkit.UseDespiteErrors(t, client, "a")
}
