package serve_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// neighbour is a server that others know, and that can be ended.
type neighbour struct {
	addr string
	s    *serve.Server
	end  func()
}

// neighbours are servers of one store that know each other.
func neighbours(t *testing.T, n int, o serve.Options) (all []neighbour) {
	t.Helper()
	var listeners []net.Listener
	o.Log, o.PeersTLS = slog.New(slog.DiscardHandler), &tls.Config{}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		o.Peers = append(o.Peers, &url.URL{Scheme: "http", Host: l.Addr().String()})
	}
	for _, l := range listeners {
		s, err := serve.New(o)
		if err != nil {
			t.Fatal(err)
		}
		h := serve.HTTP(s)
		go func() { _ = h.Serve(l) }() // ends with Close
		b := neighbour{addr: l.Addr().String(), s: s, end: func() { _ = h.Close() }}
		t.Cleanup(func() { b.end(); s.Close() })
		all = append(all, b)
	}
	return all
}

// reach repeats a keep-alive until the session's server is found: on a busy machine it may not answer a search in time.
func reach(t *testing.T, c *api) {
	t.Helper()
	testkit.Eventually(t, "the session's server", func() bool {
		began := time.Now()
		status := c.do("POST", "/v1/session/keepalive", nil, nil)
		if status != http.StatusOK && time.Since(began) < serve.ProbeAnswer {
			t.Fatalf("the keep-alive: %d, and not since the server was slow", status)
		}
		return status == http.StatusOK
	})
}

// What is asked of another server about a session is answered by the one that has it, to the token's holder alone.
func TestPassedOn(t *testing.T) {
	known, token := tokensOf(t, [3]string{"one", "look,lock", "*"}, [3]string{"two", "look,lock", "*"})
	both := neighbours(t, 2, serve.Options{Store: memlock.New().Backend(), Tokens: known})
	here := &api{t: t, s: both[0].s, token: token["one"]}
	id := here.open(time.Minute).Session
	there := &api{t: t, s: both[1].s, token: token["one"], session: id}
	reach(t, there)
	if l := there.lock("1", "a"); l.State != httpapi.Held {
		t.Fatalf("%+v", l)
	}
	there.want(http.StatusOK, "POST", "/v1/session/keepalive", nil, nil)
	there.want(http.StatusNoContent, "PUT", "/v1/locks/1/value", httpapi.Value{Value: []byte("v")}, nil)
	here.want(http.StatusNoContent, "DELETE", "/v1/locks/1", nil, nil)
	there.refused(httpapi.Gone, "POST", "/v1/locks/1/wait", httpapi.Wait{})
	here.lock("2", "b")
	there.want(http.StatusOK, "GET", "/v1/session/events?wait_ms=1", nil, nil)

	another := &api{t: t, s: both[1].s, token: token["two"], session: id}
	another.refused(httpapi.SessionGone, "POST", "/v1/session/keepalive", nil)
	another.token = "AAAABBBBCCCCDDDD"
	another.refused(httpapi.NoToken, "POST", "/v1/session/keepalive", nil)

	there.want(http.StatusNoContent, "DELETE", "/v1/session", nil, nil)
	here.refused(httpapi.SessionGone, "POST", "/v1/session/keepalive", nil)
}

// A client of the library does not notice that each of its requests comes to another server, and it waits there for a grant.
func TestPassedOnToWaiters(t *testing.T) {
	both := neighbours(t, 2, serve.Options{Store: memlock.New().Backend()})
	front := rotating(t, both)
	a, b := testkit.ClientOn(t, open(t, front, "")), testkit.ClientOn(t, open(t, front, ""))
	held := testkit.Lock(t, a, "a")
	next := testkit.Queued(t, b, "a")
	testkit.Release(t, held)
	if l := testkit.Granted(t, next); l.Token() <= held.Token() {
		t.Errorf("token %d after %d", l.Token(), held.Token())
	}
}

// rotating leads connections to one server after the other.
func rotating(t *testing.T, all []neighbour) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for i := 0; ; i++ {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", all[i%len(all)].addr)
			if err != nil {
				_ = from.Close()
				continue
			}
			relay := func(to, from net.Conn) {
				_, _ = io.Copy(to, from) // until one of them is closed
				_, _ = to.Close(), from.Close()
			}
			go relay(to, from)
			go relay(from, to)
		}
	}()
	return l.Addr().String()
}

// A session of no server is gone, and no request goes round in circles.
func TestSessionOfNoServer(t *testing.T) {
	both := neighbours(t, 2, serve.Options{Store: memlock.New().Backend()})
	c := &api{t: t, s: both[0].s}
	id := c.open(time.Minute).Session
	life, secret, _ := strings.Cut(id, "-")
	for _, of := range []string{"another-" + secret, life + "-" + "x", life, "-", "-" + secret, "another"} {
		for _, s := range both {
			c := &api{t: t, s: s.s, session: of}
			c.refused(httpapi.SessionGone, "POST", "/v1/session/keepalive", nil)
		}
	}
	// Passed on by a server that takes this one for another.
	q, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+both[1].addr+"/v1/session/keepalive", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set(httpapi.SessionHeader, id)
	q.Header.Set("Hasp-Passed-On", "another")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	if _ = r.Body.Close(); r.StatusCode != http.StatusGone {
		t.Errorf("passed on twice: %s", r.Status)
	}
}

// The server of a session ends, or stops to answer: its clients are told that the session is gone, those that wait as well.
func TestPeerEnds(t *testing.T) {
	t.Parallel()
	store := memlock.New()
	both := neighbours(t, 2, serve.Options{Store: store.Backend()})
	here, there := &api{t: t, s: both[0].s}, &api{t: t, s: both[1].s}
	there.session = here.open(time.Minute).Session
	reach(t, there)
	there.lock("1", "a")
	both[0].end()
	testkit.Eventually(t, "the session to be gone", func() bool { // a request may fail before, while the connection ends
		var p httpapi.Problem
		return there.do("POST", "/v1/session/keepalive", nil, &p) == http.StatusGone && p.Of(httpapi.SessionGone)
	})
}

// A server stops to answer. What it may have done is unknown, and only who asks again hears that the session is gone.
func TestPeerIsSilent(t *testing.T) {
	t.Parallel()
	for what, x := range map[string]struct {
		method, path string
		body         any
		first        string
	}{
		"a lock is asked for": {"PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Wait: 25_000}, httpapi.Unknown},
		"a lock is released":  {"DELETE", "/v1/locks/1", nil, httpapi.Unknown},
		"a wait":              {"POST", "/v1/locks/1/wait", httpapi.Wait{Wait: 25_000}, httpapi.SessionGone},
		"a keep-alive":        {"POST", "/v1/session/keepalive", nil, httpapi.SessionGone},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, silent := besideSilent(t)
			var p httpapi.Problem
			testkit.Eventually(t, "the request to be passed on", func() bool { // unless a busy machine did not find the server
				c.do(x.method, x.path, x.body, &p)
				select {
				case <-silent:
					return true
				default:
					return false
				}
			})
			if !p.Of(x.first) {
				t.Errorf("the first answer is %+v, want %s", p, x.first)
			}
			c.refused(httpapi.SessionGone, x.method, x.path, x.body)
		})
	}
}

// besideSilent is a client of a server, with a session of another one that answers nothing from its first request on, when silent is closed.
func besideSilent(t *testing.T) (c *api, silent chan struct{}) {
	t.Helper()
	silent = make(chan struct{})
	once := sync.OnceFunc(func() { close(silent) })
	hanging := http.NewServeMux()
	hanging.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) {
		once()
		<-q.Context().Done()
	})
	hanging.HandleFunc("GET /healthz", func(w http.ResponseWriter, q *http.Request) {
		select {
		case <-silent:
			<-q.Context().Done()
		default:
			w.Header().Set(httpapi.ServerHeader, "life")
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var two http.Protocols
	two.SetUnencryptedHTTP2(true)
	h := &http.Server{Handler: hanging, Protocols: &two}
	go func() { _ = h.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = h.Close() })
	s, _ := start(t, serve.Options{Store: memlock.New().Backend(), Peers: []*url.URL{{Scheme: "http", Host: l.Addr().String()}}})
	return &api{t: t, s: s, session: "life-session"}, silent
}

// Two clients ask for sessions of a server that is being looked for, and the one whose request has begun that goes away: the other is
// answered by the server.
func TestSearchOutlastsItsClient(t *testing.T) {
	t.Parallel()
	for range 5 {
		began := time.Now()
		a := searchOutlastsItsClient(t)
		switch took := time.Since(began); {
		case a.Code == http.StatusOK:
			return
		case took < serve.ProbeAnswer:
			t.Fatalf("%d: %s", a.Code, a.Body)
		default:
			t.Logf("%d after %s: the machine was busy for longer than a search lasts", a.Code, took)
		}
	}
	t.Error("five searches were over before their server could answer")
}

// searchOutlastsItsClient returns the answer to the second.
func searchOutlastsItsClient(t *testing.T) *httptest.ResponseRecorder {
	t.Helper()
	searched, found := make(chan struct{}, 10), make(chan struct{})
	there := http.NewServeMux()
	there.HandleFunc("GET /healthz", func(w http.ResponseWriter, q *http.Request) {
		searched <- struct{}{}
		select {
		case <-found:
			w.Header().Set(httpapi.ServerHeader, "life")
		case <-q.Context().Done(): // the search is given up
		}
	})
	there.HandleFunc("POST /v1/session/keepalive", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var two http.Protocols
	two.SetUnencryptedHTTP2(true)
	h := &http.Server{Handler: there, Protocols: &two}
	go func() { _ = h.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = h.Close() })
	s, _ := start(t, serve.Options{Store: memlock.New().Backend(), Peers: []*url.URL{{Scheme: "http", Host: l.Addr().String()}}})

	ask := func(ctx context.Context) <-chan *httptest.ResponseRecorder {
		answered := make(chan *httptest.ResponseRecorder, 1)
		q := httptest.NewRequestWithContext(ctx, "POST", "http://127.0.0.1:7070/v1/session/keepalive", nil)
		q.Header.Set(httpapi.SessionHeader, "life-session")
		go func() {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, q)
			answered <- w
		}()
		return answered
	}
	impatient, leave := context.WithCancel(t.Context())
	first := ask(impatient)
	testkit.Await(t, "the search", searched)
	second := ask(t.Context())
	leave()
	close(found)
	a := testkit.Await(t, "the answer", second)
	testkit.Await(t, "the end of the first", first)
	return a
}
