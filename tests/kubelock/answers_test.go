package kubelock_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

// planting has f answer requests in the place of the server, if it returns an answer.
func planting(f func(r *http.Request) (status int, contentType, body string)) func(*rest.Config) {
	return func(c *rest.Config) {
		c.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				status, kind, body := f(r)
				if status == 0 {
					return next.RoundTrip(r)
				}
				return &http.Response{
					StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: http.Header{"Content-Type": {kind}},
					Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
				}, nil
			})
		})
	}
}

// A balancer's plain 404, 409 or 412 says nothing of a Lease: what is held stays held.
func TestBalancer(t *testing.T) {
	c := shared(t)
	t.Parallel()
	for _, status := range []int{404, 409, 412} {
		var down atomic.Bool
		client := c.client(t, "balancer", planting(func(*http.Request) (int, string, string) {
			if down.Load() {
				return status, "text/plain", "no backend"
			}
			return 0, "", ""
		}))
		session := testkit.Session(t, client.Backend(), ttl, func(id string, err error) { t.Errorf("%d: %s is gone: %v", status, id, err) })
		ticket := session.Ticket(testkit.RequestAs("n", "holder"))
		testkit.Held(t, ticket)
		down.Store(true)
		if _, err := session.KeepAlive(t.Context()); err == nil || errors.Is(err, driver.ErrGone) {
			t.Errorf("%d: a renewal: %v", status, err)
		}
		if v, err := session.Ticket(testkit.RequestAs("other", "new")).Enqueue(t.Context()); err == nil || v.Held {
			t.Errorf("%d: another name: %+v, %v", status, v, err)
		}
		down.Store(false)
		if _, err := session.KeepAlive(t.Context()); err != nil {
			t.Errorf("%d: when it is back: %v", status, err)
		}
		if err := ticket.Leave(t.Context()); err != nil {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// An API server that has started just now forbids what it allows a moment later: such a request is
// made again, once. What is forbidden for good is told, and not asked for twice each time.
func TestForbiddenForAMoment(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const forbidden = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"leases is forbidden","reason":"Forbidden","code":403}`
	var left, asked atomic.Int64
	client := c.client(t, "forbidden", planting(func(r *http.Request) (int, string, string) {
		asked.Add(1)
		if left.Add(-1) >= 0 {
			return http.StatusForbidden, "application/json", forbidden
		}
		return 0, "", ""
	}))
	left.Store(1)
	l, err := client.Mutex("n").TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testkit.Release(t, l)
	left.Store(math.MaxInt64)
	for i, want := range []int64{2, 1, 1} {
		asked.Store(0)
		if _, err := client.Mutex("n").TryLock(t.Context()); !errors.Is(err, driver.ErrRefused) || asked.Load() != want {
			t.Errorf("try %d: %v after %d requests, want %d", i, err, asked.Load(), want)
		}
	}
	left.Store(0)
}

// What stands in a Lease by hand, at the ends of what numbers can say.
func TestGreatestNumbers(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "greatest"
	client := c.client(t, ns)
	c.create(t, ns, "often", object{"leaseTransitions": math.MaxInt32, "leaseDurationSeconds": 1, "holderIdentity": ""})
	l, err := client.Mutex("often").TryLock(t.Context())
	if err != nil {
		t.Errorf("after 2^31-1 transitions: %v", err)
	} else {
		testkit.Release(t, l)
	}

	c.ask(t, http.MethodPost, leases(ns), object{"metadata": object{"name": "token", "annotations": object{
		"hasplock.github.io/record": `{"hasp":1,"name":"token","renewed":"2026-01-01T00:00:00Z","nonce":"n","token":9223372036854775807}`,
	}}, "spec": object{"leaseDurationSeconds": 1, "holderIdentity": ""}})
	if _, err := client.Mutex("token").TryLock(t.Context()); !errors.Is(err, hasp.ErrMismatch) {
		t.Errorf("after the greatest token: %v", err)
	}

	c.create(t, ns, "held", object{"leaseDurationSeconds": math.MaxInt32, "holderIdentity": "someone", "renewTime": stamp(time.Now().Add(-100 * 365 * 24 * time.Hour))})
	if _, err := client.Mutex("held").TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("a Lease of 68 years that looks over: %v", err)
	}

	long := testkit.ClientOn(t, client.Backend(), hasp.WithTTL(100*365*24*time.Hour))
	if _, err := long.Mutex("n").TryLock(t.Context()); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "up to") {
		t.Errorf("a TTL of a hundred years: %v", err)
	}
}

// A dial function of the user's is used: the server may be behind a tunnel.
func TestDial(t *testing.T) {
	c := shared(t)
	t.Parallel()
	var dialled atomic.Int64
	client := c.client(t, "dialled", func(r *restConfig) {
		r.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialled.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	testkit.Release(t, testkit.Lock(t, client, "n"))
	if dialled.Load() == 0 {
		t.Error("another function has dialled")
	}
}

// A client without the right to watch is told so once.
func TestWatchRightIsMissed(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const denied = `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":false}}`
	config := c.config("")
	planting(func(r *http.Request) (int, string, string) {
		if strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
			return http.StatusCreated, "application/json", denied
		}
		return 0, "", ""
	})(config)
	b, err := kubelock.New(config, &kubelock.Options{Namespace: c.namespace(t, "unwatched-too")})
	if err != nil {
		t.Fatal(err)
	}
	warned := make(chan error, 10)
	testkit.ClientOn(t, b, hasp.WithTTL(ttl), hasp.WithObserver(warnings(warned)))
	if err := testkit.Await(t, "the warning", warned); !strings.Contains(err.Error(), "no right to watch") {
		t.Error(err)
	}
	select {
	case err := <-warned:
		t.Errorf("told again: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
}

// warnings is an observer of those alone.
type warnings chan error

func (w warnings) Observe(e hasp.Event) {
	if e.Kind == hasp.EventWarning {
		w <- e.Err
	}
}
