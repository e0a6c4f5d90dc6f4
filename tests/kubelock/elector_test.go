package kubelock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

func init() {
	klog.LogToStderr(false) // a line for each election
	klog.SetOutput(io.Discard)
}

// elector is a candidate of client-go's leader election.
type elector struct {
	c               cluster
	namespace, name string
	identity        string
	dies            bool // without releasing
	coordinated     bool // elected by the API server
}

// lead is a term of an elector.
type lead struct {
	e       elector
	ctx     context.Context // the leader's
	stop    context.CancelFunc
	stopped chan struct{}
}

// retryPeriod is that of the electors; LeaseDuration is more than RenewDeadline and RetryPeriod.
const retryPeriod = 100 * time.Millisecond

// lock runs an election until it is won.
func (e elector) lock(ctx context.Context) (recordedhold.Lease, error) {
	client, err := coordinationclient.NewForConfig(e.c.config(backends.KubeAdmin))
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.Background())
	won := make(chan context.Context, 1)
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: meta.ObjectMeta{Namespace: e.namespace, Name: e.name}, Client: client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
		},
		LeaseDuration: ttl, RenewDeadline: 2 * time.Second, RetryPeriod: retryPeriod, ReleaseOnCancel: !e.dies, Coordinated: e.coordinated,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { won <- ctx },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		stop()
		return nil, err
	}
	l := &lead{e: e, stop: stop, stopped: make(chan struct{})}
	go func() {
		defer close(l.stopped)
		le.Run(run)
	}()
	select {
	case l.ctx = <-won:
		return l, nil
	case <-ctx.Done():
		stop()
		<-l.stopped
		return nil, ctx.Err()
	}
}

func (l *lead) Token() uint64            { return 0 }
func (l *lead) Held() bool               { return l.ctx.Err() == nil }
func (l *lead) Context() context.Context { return l.ctx }

func (l *lead) Release(ctx context.Context) error {
	lost := l.ctx.Err() != nil
	l.stop()
	<-l.stopped
	switch {
	case lost:
		return hasp.ErrLost
	case l.e.dies:
		return errors.New("it has died")
	}
	return nil
}

// candidates are hasp's clients and client-go's electors for one Lease.
type candidates struct {
	t         *testing.T
	c         cluster
	namespace string
	name      string
	rec       *history.Recorder
	config    func(*rest.Config) // changes that of hasp's connections; nil: nothing
	neverEnds bool               // no elector releases
	haspLed   atomic.Int64
	othersLed atomic.Int64
}

// hasp has a client take the lock again and again while its network breaks: cut, reset, held for up
// to two TTLs and then delivered; and now and then it is cut off for good, which is its death.
func (x *candidates) hasp(ctx context.Context, who string) {
	for life := 0; ctx.Err() == nil; life++ {
		x.live(ctx, fmt.Sprint(who, "-", life))
	}
}

func (x *candidates) live(ctx context.Context, who string) {
	proxy := testkit.Proxy(x.t, x.c.Addr)
	config := x.c.through(proxy.Addr(), backends.KubeAdmin)
	if x.config != nil {
		x.config(config)
	}
	b, err := kubelock.New(config, &kubelock.Options{Namespace: x.namespace})
	if err != nil {
		x.t.Error(err)
		return
	}
	client, err := hasp.New(b, hasp.WithTTL(ttl))
	if err != nil {
		x.t.Error(err)
		return
	}
	life, die := context.WithTimeout(ctx, 2*ttl+rand.N(4*ttl))
	defer die()
	var faults sync.WaitGroup
	faults.Go(func() {
		for life.Err() == nil {
			sleep(life, rand.N(2*ttl))
			switch rand.N(4) {
			case 0:
				proxy.Cut()
			case 1:
				proxy.Reset()
			default: // what is held is delivered late
				proxy.Partition()
				sleep(life, rand.N(2*ttl))
				if life.Err() == nil {
					proxy.Heal()
				}
			}
		}
		proxy.Partition() // dead: what it sends now is held
	})
	for life.Err() == nil {
		h := recordedhold.Hold{
			Client: client, Who: who, Name: x.name, TTL: ttl, For: rand.N(ttl),
			Begin: func(recordedhold.Lease) { x.haspLed.Add(1) },
			Work: func(l recordedhold.Lease, _ *history.Attempt) {
				select {
				case <-time.After(rand.N(3 * ttl / 2)):
				case <-l.Context().Done():
				case <-life.Done():
				}
			},
		}
		if h.Run(life, x.rec) != nil {
			sleep(life, 20*time.Millisecond)
		}
	}
	faults.Wait()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		client.Close()
	}()
	sleep(ctx, rand.N(2*ttl))
	proxy.Heal() // the dead client's last messages arrive at last
	<-closed
}

// others has an elector of client-go lead again and again; every second one dies.
func (x *candidates) others(ctx context.Context, who string) {
	for life := 0; ctx.Err() == nil; life++ {
		e := elector{c: x.c, namespace: x.namespace, name: x.name, identity: fmt.Sprint(who, "-", life), dies: x.neverEnds || life%2 == 1}
		h := recordedhold.Hold{
			Who: e.identity, Name: x.name, TTL: ttl, For: rand.N(3 * ttl / 2), Lock: e.lock,
			Begin: func(recordedhold.Lease) { x.othersLed.Add(1) },
		}
		_ = h.Run(ctx, x.rec) // its error is the end of ctx
		// Another process takes a while to start. One that asked at once would have what it has
		// released before anybody is told.
		sleep(ctx, rand.N(ttl))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// run has all of them compete until over says so, and returns the moments at which two led.
func (x *candidates) run(over func() bool) []history.Violation {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() { x.hasp(ctx, fmt.Sprint("hasp-", i)) })
		all.Go(func() { x.others(ctx, fmt.Sprint("client-go-", i)) })
	}
	for !over() {
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	all.Wait()
	return history.Exclusion(testkit.Must[history.History](x.t)(x.rec.History()))
}

// lasts is for how long hasp and client-go compete.
func lasts(t *testing.T) time.Duration {
	d, err := time.ParseDuration(os.Getenv("HASP_KUBE_ELECTORS"))
	if err != nil {
		return 30 * time.Second
	}
	return d
}

// hasp and client-go's leader election on one Lease, with kills on both sides and all other faults
// on hasp's: no two lead at once. HASP_KUBE_ELECTORS=10m runs it longer.
func TestBesideLeaderElector(t *testing.T) {
	c := shared(t)
	t.Parallel()
	x := &candidates{t: t, c: c, namespace: c.namespace(t, "electors"), name: "beside", rec: history.New()}
	both := func() bool { return x.haspLed.Load() >= 3 && x.othersLed.Load() >= 3 }
	end := time.Now().Add(lasts(t)) // or later: who is quicker on a busy machine is luck
	for _, v := range x.run(func() bool {
		return time.Now().After(end) && (both() || time.Now().After(end.Add(3*time.Minute)))
	}) {
		t.Error(v)
	}
	t.Logf("hasp led %d times, client-go %d times", x.haspLed.Load(), x.othersLed.Load())
	if !both() {
		t.Error("one side hardly led")
	}
}

// The control: if hasp's stamps did not step, client-go would take a live Lease, since it compares
// whole seconds; and the history shows it.
func TestBesideLeaderElectorSees(t *testing.T) {
	c := shared(t)
	t.Parallel()
	x := &candidates{t: t, c: c, namespace: c.namespace(t, "electors"), name: "stuck", rec: history.New(), config: between(stuck())}
	end := time.Now().Add(3 * time.Minute)
	wrong := x.run(func() bool {
		return time.Now().After(end) || len(history.Exclusion(testkit.Must[history.History](t)(x.rec.History()))) > 0
	})
	if len(wrong) == 0 {
		t.Errorf("nothing was seen in %d terms of hasp and %d of client-go", x.haspLed.Load(), x.othersLed.Load())
	}
}

// stuck keeps the stamp of each grant through all of its renewals.
func stuck() func(*http.Request) {
	var mu sync.Mutex
	first := map[string]string{} // by holder
	return func(r *http.Request) {
		if r.Method != http.MethodPut {
			return
		}
		text := bodyOf(r)
		holder, stamp := field(text, `"holderIdentity":"`), field(text, `"renewTime":"`)
		mu.Lock()
		defer mu.Unlock()
		if first[holder] == "" {
			first[holder] = stamp
		}
		if holder != "" {
			setBody(r, strings.Replace(text, `"renewTime":"`+stamp, `"renewTime":"`+first[holder], 1))
		}
	}
}

// field is the text behind begin, up to the next quote.
func field(text, begin string) string {
	_, rest, _ := strings.Cut(text, begin)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// The shortest TTL, an elector that asks ten times a second, and a holder that is cut off at random
// moments of its renewals: it has stopped believing when the elector begins to lead.
func TestCutOffBesideLeaderElector(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "electors"
	c.namespace(t, ns)
	for round := range 4 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprint("cut-", round)
			proxy := testkit.Proxy(t, c.Addr)
			l := testkit.Lock(t, c.client(t, ns, func(r *restConfig) { r.Host = "https://" + proxy.Addr() }), name)
			ctx, cancel := context.WithCancel(testkit.Context(t))
			defer cancel()
			led := make(chan recordedhold.Lease, 1)
			go func() {
				e := elector{c: c, namespace: ns, name: name, identity: "elector"}
				lead, err := e.lock(ctx)
				if err == nil {
					led <- lead
				}
			}()
			// Through several renewals the elector gets nothing.
			for end := time.Now().Add(ttl + rand.N(ttl)); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				if len(led) > 0 {
					t.Fatal("client-go leads while hasp renews")
				}
			}
			if !l.Held() {
				t.Fatalf("lost: %v", l.Err())
			}
			proxy.Partition()
			next := testkit.Await(t, "the elector's term", led)
			if l.Held() {
				t.Error("both lead")
			}
			proxy.Heal()
			if err := next.Release(testkit.Context(t)); err != nil {
				t.Errorf("client-go was disturbed by late messages: %v", err)
			}
		})
	}
}
