package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// What a client says of itself is marked with its token, with which it cannot have begun to wait in
// the year 1 or tomorrow; and no deadlock is certain because it says so.
func TestOwnersAreClaims(t *testing.T) {
	known, tokens := tokensOf(t, [3]string{"eve", "look,lock", ""}, [3]string{"bob", "look,lock", ""})
	store := memlock.New()
	c, _ := with(t, serve.Options{Store: store.Backend(), Tokens: known})
	eve, bob := &api{t: t, s: c.s, token: tokens["eve"]}, &api{t: t, s: c.s, token: tokens["bob"]}
	eve.open(time.Minute)
	bob.open(time.Minute)
	held := bob.lock("1", "a")
	eve.lock("1", "b")
	holds := func(id string) string {
		return fmt.Sprintf(`{"user":"root","via":"bob","holds":[%q]}`, id)
	}
	for i, since := range []time.Time{time.Unix(0, 0).AddDate(-1969, 0, 0), time.Now().Add(time.Hour)} {
		var l httpapi.Lock
		eve.want(200, "PUT", fmt.Sprintf("/v1/locks/%d", 2+i), httpapi.Acquire{Name: "a", Owner: holds(held.Entry), Since: since}, &l)
	}
	eve.want(200, "PUT", "/v1/locks/4", httpapi.Acquire{Name: "a", Owner: "plain text"}, nil)
	found, err := hasp.New(store.Backend())
	if err != nil {
		t.Fatal(err)
	}
	q, err := found.Inspect(t.Context(), "a")
	if err != nil || len(q.Waiters) != 3 {
		t.Fatalf("%+v, %v", q, err)
	}
	for _, w := range q.Waiters {
		if w.Owner.Via != "eve" || !strings.Contains(w.Owner.String(), `"eve" says`) {
			t.Errorf("shown as %s (%+v)", w.Owner, w.Owner)
		}
		if age := time.Since(w.Since); age < 0 || age > 25*time.Hour {
			t.Errorf("waits since %s", w.Since)
		}
	}
	if all, err := found.Deadlocks(t.Context()); err != nil || len(all) > 0 && all[0].Certain {
		t.Errorf("a deadlock is certain by a claim: %+v, %v", all, err)
	}
}

// An entry's id is the server's, and bound to the session and the number that it was made for,
// unless the token may do everything with every name. The id of another name's holder opens
// nothing.
func TestIDsAreTheServers(t *testing.T) {
	known, tokens := tokensOf(t, [3]string{"a", "look,lock,operate", "a/"}, [3]string{"b", "look,lock,operate", "b/"})
	c, _ := with(t, serve.Options{Tokens: known})
	a, b := &api{t: t, s: c.s, token: tokens["a"]}, &api{t: t, s: c.s, token: tokens["b"]}
	a.open(time.Minute)
	b.open(time.Minute)
	var leader httpapi.Lock
	b.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "b/leader", Value: []byte("b")}, &leader)
	var l httpapi.Lock
	a.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a/y", Entry: leader.Entry}, &l)
	if l.Entry == leader.Entry {
		t.Errorf("it has the other's id: %+v", l)
	}
	a.want(204, "PUT", "/v1/locks/1/value", httpapi.Value{Value: []byte("a")}, nil)
	a.refused(httpapi.Gone, "POST", "/v1/evict", httpapi.EvictEntry{Name: "a/y", Entry: leader.Entry})
	a.refused(httpapi.Gone, "POST", "/v1/locks/2/adopt", httpapi.AdoptLock{Acquire: httpapi.Acquire{Name: "a/y"}, From: leader.Entry, Seq: leader.Token})
	var q httpapi.Queue
	b.want(200, "GET", "/v1/queue?name=b/leader", nil, &q)
	if len(q.Entries) != 1 || q.Entries[0].ID != leader.Entry || string(q.Entries[0].Value) != "b" {
		t.Errorf("b's leader is %+v", q.Entries)
	}
}

// A store that can forget has one TTL for all clients, and none may ask for more than the server's
// limit of any store.
func TestTTLs(t *testing.T) {
	for name, c := range map[string]struct {
		forgets   bool
		wanted    time.Duration
		atStore   time.Duration
		told      time.Duration
		otherwise string
	}{
		"shorter":                     {false, 3 * time.Second, 3 * time.Second, 3 * time.Second, ""},
		"longer":                      {false, 40 * time.Second, 40 * time.Second, 40 * time.Second, ""},
		"too long":                    {false, 24 * time.Hour, 0, 0, httpapi.Invalid},
		"it forgets, shorter":         {true, 3 * time.Second, 10 * time.Second, 3 * time.Second, ""},
		"it forgets, longer":          {true, 40 * time.Second, 10 * time.Second, 10 * time.Second, ""},
		"it forgets, and is too long": {true, 24 * time.Hour, 0, 0, httpapi.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			store := &ttlStore{Backend: memlock.New().Backend(), forgets: c.forgets}
			client, _ := with(t, serve.Options{Store: store})
			if c.otherwise != "" {
				client.refused(c.otherwise, "POST", "/v1/session", httpapi.OpenSession{TTL: c.wanted.Milliseconds()})
				return
			}
			s := client.open(c.wanted)
			var alive httpapi.Alive
			client.want(200, "POST", "/v1/session/keepalive", nil, &alive)
			if told := c.told.Milliseconds(); store.ttl != c.atStore || s.Valid != told || alive.Valid > told {
				t.Errorf("%s at the store, and its client is told %d and %d ms", store.ttl, s.Valid, alive.Valid)
			}
		})
	}
}

type ttlStore struct {
	driver.Backend
	forgets bool
	ttl     time.Duration
}

func (s *ttlStore) Traits() driver.Traits {
	t := s.Backend.Traits()
	t.Forgets = s.forgets
	return t
}

func (s *ttlStore) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s.ttl = o.TTL
	return s.Backend.Open(ctx, o)
}

// A token has so many locks, in however many sessions.
func TestLocksOfAToken(t *testing.T) {
	c, _ := with(t, serve.Options{Limits: serve.Limits{Locks: 5}})
	n := 0
	for range 3 {
		c.open(time.Minute)
		for i := 1; i <= 2 && n < 5; i++ {
			n++
			c.lock(fmt.Sprint(i), fmt.Sprint("a", n))
		}
	}
	c.refused(httpapi.Limit, "PUT", "/v1/locks/9", httpapi.Acquire{Name: "b"})
	c.want(204, "DELETE", "/v1/locks/1", nil, nil)
	c.lock("10", "b")
}

// logged is a log that tests read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

type faulty struct{ driver.Backend }

func (faulty) List(context.Context, string, int) ([]driver.Entry, error) { panic("a fault") }

// A fault of the program costs one answer. It is in the log and in the metrics, with a stack now
// and then.
func TestPanic(t *testing.T) {
	log := &logged{}
	c, _ := with(t, serve.Options{Store: faulty{memlock.New().Backend()}, Log: slog.New(slog.NewTextHandler(log, nil))})
	for range 20 {
		c.refused(httpapi.Internal, "GET", "/v1/queue?name=a", nil)
	}
	c.open(time.Minute)
	w := httptest.NewRecorder()
	c.s.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
	said := log.String()
	if !strings.Contains(w.Body.String(), "hasp_serve_panics_total 20\n") || strings.Count(said, "a fault\"") < 20 || strings.Count(said, `stack="goroutine`) != 1 || !strings.Contains(said, `in="GET /v1/queue"`) {
		t.Errorf("the log:\n%s\nthe metrics:\n%s", said, w.Body)
	}
}

// full is a listener of a process that is out of file descriptors for a while.
type full struct {
	net.Listener
	fails int
}

func (l *full) Accept() (net.Conn, error) {
	if l.fails > 0 {
		l.fails--
		return nil, &net.OpError{Op: "accept", Err: temporary{}}
	}
	return l.Listener.Accept()
}

type temporary struct{}

func (temporary) Error() string   { return "too many open files" }
func (temporary) Temporary() bool { return true }
func (temporary) Timeout() bool   { return false }

// Connections that cannot be accepted are counted, and logged now and then, and the server goes on.
func TestOutOfDescriptors(t *testing.T) {
	log := &logged{}
	_, s := with(t, serve.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, &full{l, 5}, nil, time.Minute) }()
	defer func() {
		end()
		if err := <-ended; err != nil {
			t.Errorf("told to end: %v", err)
		}
	}()
	r, err := http.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if n := strings.Count(log.String(), "too many open files"); err != nil || n != 1 || !strings.Contains(string(body), "hasp_serve_accept_errors_total 5\n") {
		t.Errorf("logged %d times, %v:\n%s", n, err, body)
	}
}

// Connections that have shown no token are bounded: the one that came first makes room. One that
// has shown a token stays.
func TestStrangers(t *testing.T) {
	known, tokens := tokensOf(t, [3]string{"ci", "look", ""})
	_, addr := start(t, serve.Options{Store: memlock.New().Backend(), Tokens: known, Strangers: 3})
	ask := func(c net.Conn, path, token string) error {
		_ = c.SetDeadline(time.Now().Add(testkit.Patience))
		_, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: bEARER %s\r\n\r\n", path, token)
		if err == nil {
			_, err = c.Read(make([]byte, 4096))
		}
		return err
	}
	dial := func() net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	client, first := dial(), dial()
	if err := ask(client, "/v1", tokens["ci"]); err != nil {
		t.Fatal(err)
	}
	if err := ask(first, "/healthz", ""); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := ask(dial(), "/healthz", ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(first, "/healthz", ""); err == nil {
		t.Error("the first of four strangers is served")
	}
	if err := ask(client, "/v1", tokens["ci"]); err != nil {
		t.Errorf("a client has lost its connection: %v", err)
	}
}

// A wrong method is answered with those that the path has; one more of Bearer's spellings is known.
func TestMethods(t *testing.T) {
	c, _ := with(t, serve.Options{})
	for path, allow := range map[string]string{"/v1/session": "POST, DELETE", "/v1/locks/1": "PUT, DELETE", "/v1/queue": "GET, HEAD", "/page/evict": "POST"} {
		w := httptest.NewRecorder()
		c.s.ServeHTTP(w, httptest.NewRequest("PATCH", "http://localhost"+path, nil))
		var p httpapi.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != allow || !p.Of(httpapi.Method) {
			t.Errorf("%s: %d, allows %q, %+v, %v", path, w.Code, w.Header().Get("Allow"), p, err)
		}
	}
	c.refused(httpapi.NotFound, "GET", "/v1/nothing", nil)
}

type away struct{ driver.Backend }

func (away) List(context.Context, string, int) ([]driver.Entry, error) {
	return nil, fmt.Errorf("redis: %w", &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 6379}, Err: fmt.Errorf("refused; lookup cache.internal on 10.0.0.2:53")})
}

// What goes wrong behind the server is told without addresses, and in the log with them.
func TestNoAddresses(t *testing.T) {
	c, _ := with(t, serve.Options{Store: away{memlock.New().Backend()}})
	for _, path := range []string{"/v1/queue?name=a", "/page/queue?name=a"} {
		var p httpapi.Problem
		c.want(http.StatusBadGateway, "GET", path, nil, &p)
		for _, secret := range []string{"10.1.2.3", "6379", "cache.internal", "10.0.0.2"} {
			if strings.Contains(p.Detail, secret) {
				t.Errorf("%s: %q shows %s", path, p.Detail, secret)
			}
		}
		if !strings.Contains(p.Detail, "refused") {
			t.Errorf("%s does not say why: %q", path, p.Detail)
		}
	}
}

// A path is quoted once in the log.
func TestPathInTheLog(t *testing.T) {
	log := &logged{}
	c, _ := with(t, serve.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	q := httptest.NewRequest("GET", "http://localhost/", nil)
	q.URL.Path = "/a\nb"
	c.s.ServeHTTP(httptest.NewRecorder(), q)
	if !strings.Contains(log.String(), `path="/a\nb"`) {
		t.Errorf("the log: %s", log)
	}
}

// A token that is not in the file any more does not work: neither for a request, nor for what goes
// on for long; and its locks end by their TTL. The others go on.
func TestTokensChange(t *testing.T) {
	before, tokens := tokensOf(t, [3]string{"kept", "look,lock", ""})
	synctest.Test(t, func(t *testing.T) {
		c, s := with(t, serve.Options{Tokens: before})
		kept := &api{t: t, s: s, token: tokens["kept"]}
		kept.open(10 * time.Second)
		kept.lock("1", "a")
		watched := make(chan struct{})
		go func() {
			kept.want(200, "GET", "/v1/watch?name=a", nil, nil)
			close(watched)
		}()
		synctest.Wait()
		s.SetTokens(before) // as read again
		<-watched
		kept.want(200, "POST", "/v1/session/keepalive", nil, nil)
		other, secret := tokensOf(t, [3]string{"other", "look,lock", ""})
		s.SetTokens(other)
		kept.refused(httpapi.NoToken, "POST", "/v1/session/keepalive", nil)
		next := &api{t: t, s: c.s, token: secret["other"]}
		next.open(time.Minute)
		var l httpapi.Lock
		next.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Wait: 30_000}, &l)
		if l.State != httpapi.Held {
			t.Errorf("the removed token's lock is still held: %+v", l)
		}
	})
}
