package httplock_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	_ "github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/tests/internal/haspserve"
	"github.com/hasplock/hasp/tests/internal/linear"
)

const (
	faultTTL     = 3 * time.Second
	faultClients = 4
)

// faultRun is several clients of one server, each behind its own bad network, the server behind
// another, and the history of two locks.
type faultRun struct {
	recordedhold.Workload
	server *haspserve.Server
	store  *faultnet.Proxy   // between server and store
	nets   []*faultnet.Proxy // between clients and server
}

// newFaultRun puts what front makes of the server's address between the clients and the server. One
// more client uses the store itself.
func newFaultRun(t *testing.T, front func(addr string) string) *faultRun {
	t.Helper()
	redis := backends.StartRedis(t, backends.RedisOptions{})
	f := &faultRun{
		store:    testkit.Proxy(t, redis.Addr),
		Workload: recordedhold.Workload{Names: []string{"a", "b"}, TTL: faultTTL, Rec: history.New()},
	}
	f.server = haspserve.New(t, "redis://"+f.store.Addr(), "--ttl", faultTTL.String())
	for range faultClients {
		net := testkit.Proxy(t, front(f.server.Addr))
		f.nets = append(f.nets, net)
		f.Clients = append(f.Clients, testkit.Client(t, "hasp+http://"+net.Addr(), hasp.WithTTL(faultTTL)))
	}
	f.Clients = append(f.Clients, testkit.Client(t, redis.URL(), hasp.WithTTL(faultTTL)))
	return f
}

// inject makes one fault after another until the time is over, and repairs all.
func (f *faultRun) inject(t *testing.T, lasts time.Duration) {
	t.Helper()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		net := f.nets[r.IntN(len(f.nets))]
		if r.IntN(3) == 0 {
			net = f.store
		}
		span := faultTTL/10 + time.Duration(r.Int64N(int64(3*faultTTL/2)))
		switch r.IntN(6) {
		case 0, 1: // killed, and down for a while
			f.server.Kill()
			time.Sleep(span / 4)
			f.server.Start()
		case 2: // stopped: the store expires what it has, and the server does not know
			f.server.Signal(syscall.SIGSTOP)
			time.Sleep(span)
			f.server.Signal(syscall.SIGCONT)
		case 3: // held, then delivered
			net.Partition()
			time.Sleep(span)
			net.Heal()
		case 4:
			net.Reset()
		case 5:
			net.Lose(faultnet.Down, 1+r.IntN(3), nil)
		}
		time.Sleep(time.Duration(r.Int64N(int64(faultTTL / 4))))
	}
}

// judge has every client get every lock, now that the faults are over, and requires that no two
// have held at once, and that tokens follow the order of the grants.
func judge(t *testing.T, w *recordedhold.Workload) {
	t.Helper()
	for _, c := range w.Clients {
		for _, name := range w.Names {
			testkit.UseDespiteErrors(t, c, name)
		}
	}
	h, err := w.Rec.History()
	if err != nil {
		t.Fatal(err)
	}
	linear.Require(t, h, linear.Options{Fencing: true})
}

// The server is killed, stopped and started anew, and the networks on both sides of it are held,
// cut and robbed of answers, while clients work through it and beside it. No two hold at once, and
// tokens follow the order of the grants. When the faults are over, every client gets every lock.
func TestRandomFaults(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	f := newFaultRun(t, func(addr string) string { return addr })
	ctx, cancel := context.WithCancel(t.Context())
	workers := f.Run(ctx)
	f.inject(t, 20*time.Second)
	cancel()
	workers.Wait()
	judge(t, &f.Workload)
}

// The server is killed while a client holds a lock through it. The client has given the lock up
// when the store grants it to another. The control is a server that says that the session is valid
// for longer than the store has granted: the same checks find that two have held.
func TestServerKilled(t *testing.T) {
	for what, front := range map[string]func(addr string) string{
		"honest":   func(addr string) string { return addr },
		"boastful": func(addr string) string { return boastful(t, addr) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			redis := backends.StartRedis(t, backends.RedisOptions{})
			s := haspserve.New(t, redis.URL(), "--ttl", faultTTL.String())
			rec := history.New()
			held, overlapped := make(chan struct{}), make(chan struct{})
			through := recordedhold.Hold{
				Client: testkit.Client(t, "hasp+http://"+front(s.Addr), hasp.WithTTL(faultTTL)),
				Who:    "through the server", Name: "a", TTL: faultTTL,
				Begin: func(recordedhold.Lease) { close(held) },
				Work: func(l recordedhold.Lease, _ *history.Attempt) {
					select {
					case <-l.Context().Done():
					case <-overlapped:
					}
				},
			}
			beside := recordedhold.Hold{
				Client: testkit.Client(t, redis.URL()), Who: "beside it", Name: "a", For: time.Second, TTL: faultTTL,
				End: func(recordedhold.Lease) { close(overlapped) },
			}
			var both sync.WaitGroup
			both.Go(func() {
				if err := through.Run(ctx(t), rec); err != nil {
					t.Error(err)
				}
			})
			testkit.Await(t, "the lock through the server", held)
			s.Kill()
			both.Go(func() {
				if err := beside.Run(ctx(t), rec); err != nil {
					t.Error(err)
				}
			})
			both.Wait()
			h, err := rec.History()
			if err != nil {
				t.Fatal(err)
			}
			if what == "honest" {
				linear.Require(t, h, linear.Options{Fencing: true})
			} else if len(history.Exclusion(h)) == 0 {
				t.Error("a lock that was believed for longer than it lasted has passed the checks")
			}
		})
	}
}

var validity = regexp.MustCompile(`"valid_ms":(\d+)`)

// boastful is a proxy that makes every validity ten times as long.
func boastful(t *testing.T, addr string) string {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	p.FlushInterval = -1
	p.ModifyResponse = func(r *http.Response) error {
		if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		body = validity.ReplaceAllFunc(body, func(b []byte) []byte {
			return append(bytes.Clone(b), '0')
		})
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return nil
	}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// The server is killed and started anew while a client holds: the lock stays with its token, and is
// released.
func TestServerStartedAnew(t *testing.T) {
	t.Parallel()
	redis := backends.SharedRedis(t)
	s := haspserve.New(t, redis.URL())
	session := testkit.Session(t, testkit.Open(t, s.URL()), calm, func(id string, err error) { t.Errorf("told as gone: %s: %v", id, err) })
	ticket := session.Ticket(testkit.Request("kept"))
	held := testkit.Held(t, ticket)
	s.Kill()
	s.Start()
	testkit.Until(t, "a keep-alive", func() error {
		_, err := session.KeepAlive(ctx(t))
		return err
	})
	if v := testkit.Held(t, ticket); v.Token != held.Token {
		t.Errorf("token %d, and had %d", v.Token, held.Token)
	}
	if err := ticket.Leave(ctx(t)); err != nil {
		t.Errorf("release: %v", err)
	}
}

// Two instances of the server before one store, and clients that reach one or the other: which one
// changes while they hold and wait, and each is killed, stopped and started anew. Locks pass from
// one instance to the other, no two hold at once, and tokens follow the order of the grants. That
// locks have passed is counted. In the second part each client has a proxy with affinity, which
// leads it to the other server only when its own is down.
func TestInstancesChange(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	for name, affinity := range map[string]bool{"one at a time": false, "with affinity": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			instancesChange(t, redis, affinity)
		})
	}
}

func instancesChange(t *testing.T, redis *backends.Redis, affinity bool) {
	ttl := []string{"--ttl", faultTTL.String()}
	servers := []*haspserve.Server{haspserve.New(t, redis.URL(), ttl...), haspserve.New(t, redis.URL(), ttl...)}
	var fronts []*balancer
	adopted := func() (n int64) {
		for _, f := range fronts {
			n += f.adopted.Load()
		}
		return n
	}
	changes, atLeast := 4, int64(5)
	if affinity { // locks pass only when a server is killed
		changes, atLeast = 2, 2
	}
	names := []string{t.Name() + "a", t.Name() + "b"}
	w := recordedhold.Workload{Names: names, TTL: faultTTL, Rec: history.New()}
	for i := range faultClients {
		front := &balancer{}
		front.lead(servers[0].Addr)
		if affinity {
			front.lead(servers[i%2].Addr, servers[1-i%2].Addr)
		}
		proxy := httptest.NewServer(front)
		t.Cleanup(proxy.Close)
		fronts = append(fronts, front)
		w.Clients = append(w.Clients, testkit.Client(t, "hasp+"+proxy.URL, hasp.WithTTL(faultTTL)))
	}
	w.Clients = append(w.Clients, testkit.Client(t, redis.URL(), hasp.WithTTL(faultTTL)))
	running, cancel := context.WithCancel(t.Context())
	workers := w.Run(running)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	// Longer where the machine is so busy that few locks have passed by then.
	shown := func() bool { return adopted() >= atLeast }
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) || !shown() && time.Now().Before(end.Add(testkit.Patience)); {
		i := r.IntN(2)
		for _, front := range fronts {
			if !affinity {
				front.lead(servers[1-i].Addr)
			}
		}
		switch r.IntN(changes) {
		case 0:
			servers[i].Kill()
			servers[i].Start()
		case 1:
			servers[i].Signal(syscall.SIGSTOP)
			time.Sleep(time.Duration(r.Int64N(int64(faultTTL / 2))))
			servers[i].Signal(syscall.SIGCONT)
		}
		time.Sleep(time.Duration(r.Int64N(int64(faultTTL / 3))))
	}
	cancel()
	workers.Wait()
	judge(t, &w)
	if !shown() {
		t.Errorf("%d locks have passed from one instance to the other: this shows little", adopted())
	}
}
