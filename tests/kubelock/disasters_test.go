package kubelock_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

var disasters = flag.Duration("disasters", 0, "for how long TestDisasters goes on; 0: each kind comes once")

// disaster is a kind of what goes wrong with a cluster.
type disaster struct {
	name   string
	client func(*scene, *rest.Config) // changes the configuration of a client; nil: nothing
	once   func(*scene) string        // lets it happen, and returns when it is over
	takes  bool                       // the lock of who does not renew: the control is caught
	calm   bool                       // no lock is lost because the store refuses its renewal
}

// scene is a namespace of a cluster of two API servers on one etcd, with four clients, each with a
// network and something that answers in the server's place.
type scene struct {
	*testing.T
	servers   [2]cluster
	namespace string
	nets      []*faultnet.Proxy
	balancers []*balancer
	clients   []*hasp.Client
	rec       *history.Recorder
	control   *history.Recorder
	token     tokenFile
	led       atomic.Int64 // terms of other programs
}

// TestDisasters does to a cluster what befalls clusters, and no two hold at once; when it is over
// each client gets each lock again. -disasters 1h makes it last. Each kind has a control: two
// clients that hold without asking whether they still do, and that the same check must catch.
func TestDisasters(t *testing.T) {
	asked(t)
	first := backends.StartKube(t)
	servers := [2]cluster{{first}, {backends.StartKubeBeside(t, first)}}
	kinds := []disaster{
		{name: "restored", once: restored, takes: true},
		{name: "terminating", once: terminating, takes: true},
		{name: "rotated", once: rotated, client: byTokenFile, calm: true},
		{name: "servers", once: oneOfTwo, takes: true},
		{name: "coordinated", once: coordinated},
		{name: "answers", once: answers, takes: true},
	}
	share := *disasters / time.Duration(len(kinds)+2)
	for _, d := range kinds {
		t.Run(d.name, func(t *testing.T) { newScene(t, servers, d).run(d, share) })
	}
	t.Run("thousand", func(t *testing.T) { thousand(t, servers, share) })
	if share >= time.Minute {
		t.Run("torture", func(t *testing.T) { torture(t, servers[0], share.String()) })
	}
}

func newScene(t *testing.T, servers [2]cluster, d disaster) *scene {
	s := &scene{T: t, servers: servers, namespace: servers[0].namespace(t, "disaster-"+d.name), rec: history.New(), control: history.New()}
	for i := range 4 {
		c, net, b := servers[i%2], testkit.Proxy(t, servers[i%2].Addr), &balancer{}
		config := c.through(net.Addr(), backends.KubeAdmin)
		if d.client != nil {
			d.client(s, config)
		}
		config.Wrap(b.before)
		backend, err := kubelock.New(config, &kubelock.Options{Namespace: s.namespace})
		if err != nil {
			t.Fatal(err)
		}
		s.nets, s.balancers = append(s.nets, net), append(s.balancers, b)
		s.clients = append(s.clients, testkit.ClientOn(t, backend, hasp.WithTTL(ttl)))
	}
	return s
}

// run lets the disaster happen again and again for as long, once at least, and until the control is
// caught.
func (s *scene) run(d disaster, lasts time.Duration) {
	names, seen := []string{"a", "b"}, map[string]int{}
	ctx, stop := context.WithCancel(s.Context())
	var workers sync.WaitGroup
	for i := range s.clients {
		for _, name := range names {
			workers.Go(func() { s.work(ctx, i, name) })
		}
	}
	for i := range 2 {
		workers.Go(func() { s.believe(ctx, i) })
	}
	caught := func() bool { return len(history.Exclusion(s.past(s.control))) > 0 }
	began := time.Now()
	for n := 0; n == 0 || time.Since(began) < lasts || d.takes && !caught() && time.Since(began) < lasts+2*time.Minute; n++ {
		sleep(ctx, rand.N(ttl))
		seen[d.once(s)]++
	}
	for i := range s.nets {
		s.nets[i].Heal()
		s.balancers[i].answer.Store(nil)
	}
	stop()
	workers.Wait()
	for _, c := range s.clients {
		for _, name := range names {
			testkit.UseDespiteErrors(s, c, name)
		}
	}
	h := s.past(s.rec)
	for _, v := range history.Exclusion(h) {
		s.Error(v)
	}
	h = slices.DeleteFunc(h, func(o history.Operation) bool { return strings.HasPrefix(o.Client, "client-go") }) // it has no tokens
	for _, v := range history.Check(h, history.Options{Fencing: true}) {
		s.Error(v)
	}
	granted, lost := 0, 0
	for _, o := range h {
		if o.Outcome == history.Granted {
			granted++
		}
		if o.Release == history.NotHeld {
			lost++
			if d.calm && strings.Contains(o.Note, "refused") { // else the machine was too busy for this TTL
				s.Errorf("%s: %s", o.Client, o.Note)
			}
		}
	}
	s.Logf("%s: %d grants, of which %d were lost, %d terms of client-go's; %v; control: %d overlaps",
		time.Since(began).Round(time.Second), granted, lost, s.led.Load(), seen, len(history.Exclusion(s.past(s.control))))
	if granted < 4 {
		s.Error("hardly anything was locked")
	}
	if d.takes && !caught() {
		s.Error("the control was not caught")
	}
}

func (s *scene) past(r *history.Recorder) history.History {
	return testkit.Must[history.History](s)(r.History())
}

// work takes a lock again and again. Every fifth hold outlasts the TTL.
func (s *scene) work(ctx context.Context, i int, name string) {
	for n := 0; ctx.Err() == nil; n++ {
		hold := rand.N(40 * time.Millisecond)
		if n%5 == 0 {
			hold = 3 * ttl / 2
		}
		h := recordedhold.Hold{Client: s.clients[i], Who: fmt.Sprint("client ", i), Name: name, For: hold, TTL: ttl}
		if h.Run(ctx, s.rec) != nil {
			sleep(ctx, 100*time.Millisecond)
		}
		sleep(ctx, rand.N(200*time.Millisecond))
	}
}

// believe holds a lock for eight TTLs and never asks: the control.
func (s *scene) believe(ctx context.Context, i int) {
	for ctx.Err() == nil {
		h := recordedhold.Hold{
			Client: s.clients[i], Who: fmt.Sprint("believer ", i), Name: "believed", TTL: ttl, Unchecked: true,
			Work: func(recordedhold.Lease, *history.Attempt) { sleep(ctx, 8*ttl) },
		}
		if h.Run(ctx, s.control) != nil {
			sleep(ctx, 100*time.Millisecond)
		}
	}
}

// must is for what the test does to the cluster.
func (s *scene) must(errs ...error) {
	s.Helper()
	for _, err := range errs {
		if err != nil {
			s.Fatal(err)
		}
	}
}

// balancer answers requests in the place of the server, if it has an answer.
type balancer struct {
	answer atomic.Pointer[func(r *http.Request, next http.RoundTripper) (*http.Response, error)]
}

func (b *balancer) before(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if f := b.answer.Load(); f != nil {
			return (*f)(r, next)
		}
		return next.RoundTrip(r)
	})
}
