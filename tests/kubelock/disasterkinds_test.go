package kubelock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

// restored takes a snapshot of etcd, and some time later that is all it has, as the documentation of
// etcd says: the revisions go on further up, and watches begin anew. The API servers are started
// anew in half of the cases. It takes longer than a TTL: what was granted since the snapshot is
// forgotten, and its holders must know.
func restored(s *scene) string {
	etcd := s.servers[0].Etcd
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.URL()}})
	s.must(err)
	defer c.Close()
	file := filepath.Join(s.TempDir(), fmt.Sprint(rand.Uint64()))
	from, err := c.Snapshot(s.Context())
	s.must(err)
	to, err := os.Create(file)
	s.must(err)
	_, err = io.Copy(to, from)
	s.must(err, to.Close(), from.Close())
	time.Sleep(rand.N(2 * ttl))

	anew := rand.N(2) == 0
	s.must(etcd.Kill())
	began := time.Now()
	if anew {
		s.must(s.servers[0].Kill(), s.servers[1].Kill())
	}
	s.must(etcd.Restore(file, 1_000_000_000), os.Remove(file))
	time.Sleep(time.Until(began.Add(ttl)))
	s.must(etcd.Restart())
	if anew {
		s.must(s.servers[0].Restart(), s.servers[1].Restart())
		return "restored, and new API servers"
	}
	return "restored"
}

// terminating deletes the namespace. What its controller does, which does not run here, is done
// here: it deletes the Leases, and ends the namespace. Then another is made of that name. That the
// Leases are deleted is an eviction, which holders learn within a third of the TTL; until the other
// namespace is there no name can be locked.
func terminating(s *scene) string {
	c, ns := s.servers[rand.N(2)], "/api/v1/namespaces/"+s.namespace
	c.ask(s, http.MethodDelete, ns, nil)
	time.Sleep(rand.N(ttl))
	c.ask(s, http.MethodDelete, leases(s.namespace), nil)
	time.Sleep(ttl)
	c.ask(s, http.MethodPut, ns+"/finalize", object{"metadata": object{"name": s.namespace}, "spec": object{"finalizers": []string{}}})
	testkit.Eventually(s, "the end of the namespace", func() bool {
		status, _ := c.try(s, http.MethodGet, ns, nil)
		return status == http.StatusNotFound
	})
	time.Sleep(rand.N(ttl))
	c.ask(s, http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": s.namespace}})
	return "deleted, and made again"
}

// tokenFile is a file with a token of a service account that is valid while a Secret exists.
type tokenFile struct {
	path, secret string
}

func byTokenFile(s *scene, config *rest.Config) {
	if s.token.path == "" {
		c := s.servers[0]
		c.ask(s, http.MethodPost, "/api/v1/namespaces/"+s.namespace+"/serviceaccounts", object{"metadata": object{"name": "rotated"}})
		c.ask(s, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+s.namespace+"/rolebindings", object{
			"metadata": object{"name": "rotated"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
			"subjects": []any{object{"kind": "ServiceAccount", "namespace": s.namespace, "name": "rotated"}},
		})
		s.token.path = filepath.Join(s.TempDir(), "token")
		s.newToken()
	}
	config.BearerToken, config.BearerTokenFile = "", s.token.path
}

// newToken writes one in the place of the old one, as the kubelet does.
func (s *scene) newToken() {
	c, ns := s.servers[0], "/api/v1/namespaces/"+s.namespace
	secret := fmt.Sprint("token-", rand.Uint32())
	made := c.ask(s, http.MethodPost, ns+"/secrets", object{"metadata": object{"name": secret}})
	answer := c.ask(s, http.MethodPost, ns+"/serviceaccounts/rotated/token", object{"spec": object{
		"boundObjectRef": object{"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made["metadata"].(object)["uid"]},
	}})
	next := s.token.path + ".next"
	s.must(os.WriteFile(next, []byte(answer["status"].(object)["token"].(string)), 0o600), os.Rename(next, s.token.path))
	s.token.secret = secret
}

// rotated replaces the token and takes back the old one at once, which is not what Kubernetes does:
// a client reads the file only once a minute, or when it is refused. The server remembers for ten
// seconds what it has thought of a token.
func rotated(s *scene) string {
	old := s.token.secret
	s.newToken()
	s.servers[0].ask(s, http.MethodDelete, "/api/v1/namespaces/"+s.namespace+"/secrets/"+old, nil)
	time.Sleep(12 * time.Second)
	return "the token was replaced"
}

// oneOfTwo has one of two API servers fail, while the other goes on: a client of the one is cut off,
// what it has sent is done late, and the clients of the other lock meanwhile. Or a client's
// connections lead to the other from now on.
func oneOfTwo(s *scene) string {
	which, net := rand.N(2), s.nets[rand.N(len(s.nets))]
	server := s.servers[which]
	switch rand.N(5) {
	case 0:
		s.must(server.Kill(), server.Restart())
		return "killed"
	case 1:
		s.must(server.Restart())
		return "started anew"
	case 2:
		s.must(net.Redirect(s.servers[which].Addr))
		net.Cut()
		return "moved to the other"
	case 3:
		net.Partition()
		time.Sleep(ttl + rand.N(ttl))
		net.Heal()
		return "a network held"
	default:
		s.must(server.Pause())
		time.Sleep(ttl + rand.N(ttl))
		s.must(server.Resume())
		return "stopped for a while"
	}
}

// coordinated makes candidates for the Lease of a lock, so that the API server itself elects one of
// them, and electors that lead by that, until some have. While it has a strategy the Lease is none
// of hasp's: a holder loses it, and all are refused, until it is deleted.
func coordinated(s *scene) string {
	ctx, stop := context.WithCancel(s.Context())
	c, path := s.servers[0], "/apis/coordination.k8s.io/v1beta1/namespaces/"+s.namespace+"/leasecandidates"
	var electors sync.WaitGroup
	var all []string
	before := s.led.Load()
	for i := range 2 {
		id := fmt.Sprintf("candidate-%d-%d", before, i)
		all = append(all, id)
		c.ask(s, http.MethodPost, path, object{"metadata": object{"name": id}, "spec": object{
			"leaseName": "a", "binaryVersion": "1.37.0", "emulationVersion": "1.37.0", "strategy": "OldestEmulationVersion", "renewTime": stamp(time.Now()),
		}})
		electors.Go(func() { // it acknowledges before it is asked
			for ctx.Err() == nil {
				sleep(ctx, time.Second)
				c.try(s, http.MethodPatch, path+"/"+id, object{"spec": object{"renewTime": stamp(time.Now())}})
			}
		})
		electors.Go(func() {
			for life := i; ctx.Err() == nil; life++ {
				e := elector{c: s.servers[i], namespace: s.namespace, name: "a", identity: id, dies: life%2 == 1, coordinated: true}
				h := recordedhold.Hold{
					Who: "client-go-" + id, Name: "a", TTL: ttl, For: rand.N(2 * ttl), Lock: e.lock,
					Begin: func(recordedhold.Lease) { s.led.Add(1) },
				}
				_ = h.Run(ctx, s.rec) // its error is the end of ctx
			}
		})
	}
	what := "coordinated"
	if rand.N(3) == 0 { // the one that elects, perhaps; the candidates are renewed at the other
		s.must(s.servers[1].Restart())
		what += ", and an API server started anew"
	}
	for end := time.Now().Add(time.Minute); s.led.Load() < before+3; sleep(ctx, 100*time.Millisecond) {
		if time.Now().After(end) {
			s.Errorf("%d terms in a minute", s.led.Load()-before)
			break
		}
	}
	stop()
	electors.Wait()
	for _, id := range all {
		c.ask(s, http.MethodDelete, path+"/"+id, nil)
	}
	// The server may elect once more before it knows that.
	for end := time.Now().Add(ttl); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		status, l := c.try(s, http.MethodGet, leases(s.namespace)+"/a", nil)
		if status == http.StatusOK && l["spec"].(object)["strategy"] != nil {
			c.try(s, http.MethodDelete, leases(s.namespace)+"/a", object{"preconditions": object{"resourceVersion": l["metadata"].(object)["resourceVersion"]}})
		}
	}
	return what
}

// answers has something between one client and its server answer in its place, before the server has
// the request or after, or swallow what is asked of one Lease; in that case what else the client
// holds stays held.
func answers(s *scene) string {
	i := rand.N(len(s.clients))
	plain := func(r *http.Request, status int, kind, body string) (*http.Response, error) {
		return &http.Response{
			StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: http.Header{"Content-Type": {kind}},
			Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
		}, nil
	}
	status := []int{200, 403, 404, 409, 410, 412, 429, 502, 503}[rand.N(9)]
	planted := func(r *http.Request) (*http.Response, error) {
		if status == http.StatusOK {
			return plain(r, status, "text/html", "<html>Please log in.</html>")
		}
		return plain(r, status, "text/plain", "no backend")
	}
	var what string
	var f func(*http.Request, http.RoundTripper) (*http.Response, error)
	var beside recordedhold.Lease
	switch rand.N(3) {
	case 0:
		what, f = "answered before", func(r *http.Request, _ http.RoundTripper) (*http.Response, error) { return planted(r) }
	case 1:
		what = "answered behind"
		f = func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			reply, err := next.RoundTrip(r)
			if err != nil || r.URL.Query().Get("watch") != "" {
				return reply, err
			}
			_, err = io.Copy(io.Discard, reply.Body)
			if err = errors.Join(err, reply.Body.Close()); err != nil {
				return nil, err
			}
			return planted(r)
		}
	default:
		what = "one Lease hangs"
		beside = testkit.LockDespiteErrors(s, s.clients[i], fmt.Sprint("beside-", i))
		f = func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, "/leases/a") {
				return next.RoundTrip(r)
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
	}
	s.balancers[i].answer.Store(&f)
	time.Sleep(ttl + rand.N(ttl))
	if beside != nil && !beside.Held() {
		s.Error("another lock of the client is lost while one Lease hangs")
	}
	s.balancers[i].answer.Store(nil)
	if beside != nil {
		if err := beside.Release(testkit.Context(s)); err != nil {
			s.Error(err)
		}
	}
	return what
}

// heldLock is one of the thousand locks, as its holder has it now.
type heldLock struct {
	mu    sync.Mutex
	lease *hasp.Lease
	op    *history.Attempt
}

func (h *heldLock) set(l *hasp.Lease, op *history.Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease, h.op = l, op
}

// ask records whether the holder believes.
func (h *heldLock) ask() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease != nil && h.op.Held(h.lease.Held)
}

// thousand has a client hold 1,000 locks, and another one try them, at another API server. Nothing
// is lost while nothing happens; and when the holder is cut off for longer than the TTL, or its
// server fails, it has stopped believing when the other is granted one: it is asked at that moment.
func thousand(t *testing.T, servers [2]cluster, lasts time.Duration) {
	const ns, many, ttl = "thousand", 1000, 15 * time.Second
	servers[0].namespace(t, ns)
	net := testkit.Proxy(t, servers[0].Addr)
	open := func(config *rest.Config) *hasp.Client {
		b, err := kubelock.New(config, &kubelock.Options{Namespace: ns})
		if err != nil {
			t.Fatal(err)
		}
		return testkit.ClientOn(t, b, hasp.WithTTL(ttl))
	}
	holder, rival := open(servers[0].through(net.Addr(), backends.KubeAdmin)), open(servers[1].config(backends.KubeAdmin))
	rec, locks := history.New(), make([]heldLock, many)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var lost, taken atomic.Int64
	var all sync.WaitGroup
	atOnce := make(chan struct{}, 32)
	for i := range locks {
		name := fmt.Sprint("n-", i)
		all.Go(func() {
			for ctx.Err() == nil {
				atOnce <- struct{}{}
				op := rec.Acquire("holder", name, history.Exclusive())
				l, err := holder.Mutex(name).Lock(ctx)
				<-atOnce
				if err != nil {
					op.Unknown(err)
					sleep(ctx, rand.N(2*time.Second))
					continue
				}
				op.Granted(l.Token(), 0)
				locks[i].set(l, op)
				select {
				case <-l.Context().Done():
					lost.Add(1)
				case <-ctx.Done():
				}
				locks[i].ask()
				locks[i].set(nil, nil)
				op.Releasing()
				within, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
				if err := l.Release(within); err == nil {
					op.Released()
				} else {
					op.NotHeld(err)
				}
				cancel()
			}
		})
	}
	held := func() (n int) {
		for i := range locks {
			if locks[i].ask() {
				n++
			}
		}
		return n
	}
	full := func() {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); held() < many; time.Sleep(500 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d locks are held after two minutes", held())
			}
		}
	}
	full()
	contend := func() { // a try of a dead holder's lock waits until that is certain
		for ctx.Err() == nil {
			sleep(ctx, rand.N(time.Second))
			i := rand.N(many)
			name := fmt.Sprint("n-", i)
			op := rec.Acquire("rival", name, history.Exclusive())
			l, err := rival.Mutex(name).TryLock(ctx)
			if err != nil {
				op.Unknown(err)
				continue
			}
			op.Granted(l.Token(), 0)
			taken.Add(1)
			if op.Held(l.Held) {
				locks[i].ask()
			}
			op.Held(l.Held)
			op.Releasing()
			if err := l.Release(testkit.Context(t)); err == nil {
				op.Released()
			} else {
				op.ReleaseUnknown(err)
			}
		}
	}
	for range 16 {
		all.Go(contend)
	}
	time.Sleep(ttl)
	if lost.Load() > 0 || taken.Load() > 0 {
		t.Errorf("nothing has happened, and %d locks were lost, %d taken by another", lost.Load(), taken.Load())
	}
	faults := 0
	for began := time.Now(); faults == 0 || time.Since(began) < lasts; faults++ {
		switch faults % 3 {
		case 0:
			net.Partition()
			time.Sleep(ttl + rand.N(ttl/2))
			net.Heal()
		case 1:
			if err := servers[0].Kill(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(rand.N(ttl))
			if err := servers[0].Restart(); err != nil {
				t.Fatal(err)
			}
		default:
			if err := servers[0].Pause(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(ttl + rand.N(ttl/2))
			if err := servers[0].Resume(); err != nil {
				t.Fatal(err)
			}
		}
		full()
	}
	stop()
	all.Wait()
	h := testkit.Must[history.History](t)(rec.History())
	for _, v := range append(history.Exclusion(h), history.Check(h, history.Options{Fencing: true})...) {
		t.Error(v)
	}
	t.Logf("%d locks held, %d faults: %d were lost, %d granted to another", many, faults, lost.Load(), taken.Load())
	if lost.Load() == 0 || taken.Load() == 0 {
		t.Error("hardly anything has happened")
	}
}
