package serve_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// A request for events that its client has given up is delivered while the client's next one is
// under way, and ends that one at the server. The client asks again, and is granted the lock.
func TestEventsDeliveredLate(t *testing.T) {
	_, addr := start(t, serve.Options{Store: memlock.New().Backend()})
	through := &repeater{t: t, server: &url.URL{Scheme: "http", Host: addr}, overtaken: make(chan struct{})}
	proxy := httptest.NewServer(through)
	defer proxy.Close()
	b := open(t, strings.TrimPrefix(proxy.URL, "http://"), "")
	defer b.Close()
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Minute, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	enter := func(id string) driver.Ticket {
		ticket := s.Ticket(driver.Request{Name: "a", ID: id, Units: driver.Whole, Capacity: driver.Whole})
		if _, err := ticket.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	holder, waiter := enter("holder"), enter("waiter")
	granted := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	go func() {
		v, err := waiter.Wait(ctx)
		for err == nil && !v.Held { // early returns are allowed
			v, err = waiter.Wait(ctx)
		}
		granted <- err
	}()
	testkit.Await(t, "a request that is overtaken", through.overtaken)
	if err := holder.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := testkit.Await(t, "the grant", granted); err != nil {
		t.Errorf("Wait: %v", err)
	}
}

// repeater passes requests on, and repeats the first request until the answer to the original is
// that another has overtaken it.
type repeater struct {
	t         testing.TB
	server    *url.URL
	began     atomic.Bool
	overtaken chan struct{}
}

func (p *repeater) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	pass := httputil.NewSingleHostReverseProxy(p.server)
	pass.ErrorLog = quiet // a request that is given up at the end
	if !strings.HasSuffix(q.URL.Path, "/events") || p.began.Swap(true) {
		pass.ServeHTTP(w, q)
		return
	}
	answered := make(chan struct{})
	go p.repeat(q, answered)
	pass.ModifyResponse = func(r *http.Response) error {
		if r.StatusCode != http.StatusConflict {
			p.t.Errorf("the first request was answered with %s", r.Status)
		}
		return nil
	}
	pass.ServeHTTP(w, q)
	close(answered)
	close(p.overtaken)
}

// repeat sends copies of a request until answered is closed.
func (p *repeater) repeat(q *http.Request, answered <-chan struct{}) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		again, err := http.NewRequestWithContext(ctx, q.Method, p.server.String()+q.URL.Path+"?wait_ms=20", nil)
		if err != nil {
			p.t.Error(err)
		}
		again.Header = q.Header.Clone()
		if resp, err := http.DefaultClient.Do(again); err == nil {
			_ = resp.Body.Close()
		}
		cancel()
		select {
		case <-answered:
			return
		default:
		}
	}
}
