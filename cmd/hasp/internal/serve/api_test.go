package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/memlock"
)

// api is a client that calls the handler itself, so that time can be the test's.
type api struct {
	t       testing.TB
	s       http.Handler
	token   string
	session string
	answers map[string][]byte // if not nil: the last good answer of each operation
}

// do makes a request, and returns the status; it decodes an answer into what is not nil.
func (c *api) do(method, path string, body, into any) int {
	c.t.Helper()
	var in io.Reader = strings.NewReader("")
	if text, ok := body.(string); ok {
		in = strings.NewReader(text)
	} else if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		in = bytes.NewReader(text)
	}
	q := httptest.NewRequestWithContext(c.t.Context(), method, "http://127.0.0.1:7070"+path, in)
	if c.token != "" {
		q.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.session != "" {
		q.Header.Set(httpapi.SessionHeader, c.session)
	}
	w := httptest.NewRecorder()
	c.s.ServeHTTP(w, q)
	if w.Code < 400 && c.answers != nil {
		path, _, _ = strings.Cut(path, "?")
		c.answers[method+" "+path] = w.Body.Bytes()
	}
	if into != nil && w.Body.Len() > 0 {
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			c.t.Fatalf("%s %s: %q: %v", method, path, w.Body, err)
		}
	}
	return w.Code
}

// want is do, and fails if the status is another.
func (c *api) want(status int, method, path string, body, into any) {
	c.t.Helper()
	var p httpapi.Problem
	if status >= 400 && into == nil {
		into = &p
	}
	if got := c.do(method, path, body, into); got != status {
		c.t.Fatalf("%s %s: %d, want %d (%+v)", method, path, got, status, into)
	}
}

// refused requires a problem of a type.
func (c *api) refused(kind, method, path string, body any) {
	c.t.Helper()
	var p httpapi.Problem
	if status := c.do(method, path, body, &p); !p.Of(kind) || status != p.Status {
		c.t.Errorf("%s %s: %d, %+v; want %s", method, path, status, p, kind)
	}
}

func (c *api) open(ttl time.Duration) httpapi.Session {
	c.t.Helper()
	var s httpapi.Session
	c.session = ""
	c.want(http.StatusCreated, "POST", "/v1/session", httpapi.OpenSession{TTL: ttl.Milliseconds()}, &s)
	c.session = s.Session
	return s
}

func (c *api) lock(number, name string) httpapi.Lock {
	c.t.Helper()
	var l httpapi.Lock
	c.want(http.StatusOK, "PUT", "/v1/locks/"+number, httpapi.Acquire{Name: name}, &l)
	return l
}

// with serves a store in memory to one client. It ends with the test.
func with(t testing.TB, o serve.Options) (*api, *serve.Server) {
	t.Helper()
	if o.Store == nil {
		o.Store = memlock.New().Backend()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := serve.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &api{t: t, s: s}, s
}

// A session that is not kept alive ends at the store by the TTL, and at the server a little later.
// One that is kept alive does not.
func TestSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		c, _ := with(t, serve.Options{Store: store.Backend()})
		other := &api{t: t, s: c.s}
		if s := c.open(10 * time.Second); s.Valid != 10000 {
			t.Fatalf("valid for %d ms", s.Valid)
		}
		token := c.lock("1", "a").Token
		other.open(10 * time.Second)
		for range 5 {
			time.Sleep(8 * time.Second)
			var alive httpapi.Alive
			for _, each := range []*api{c, other} {
				each.want(200, "POST", "/v1/session/keepalive", nil, &alive)
			}
			if alive.Valid != 10000 {
				t.Fatalf("kept alive for %d ms", alive.Valid)
			}
		}
		if l := other.lock("1", "a"); l.State != httpapi.Waiting {
			t.Fatalf("while another is kept alive the lock is %s", l.State)
		}
		time.Sleep(9 * time.Second)
		other.want(200, "POST", "/v1/session/keepalive", nil, nil)
		time.Sleep(2 * time.Second)
		if l := other.lock("1", "a"); l.State != httpapi.Held || l.Token <= token {
			t.Errorf("when the holder's TTL is over: %+v after token %d", l, token)
		}
		time.Sleep(2 * time.Second)
		c.refused(httpapi.SessionGone, "POST", "/v1/session/keepalive", nil)
		w := httptest.NewRecorder()
		c.s.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
		for _, line := range []string{"hasp_serve_sessions 1\n", "hasp_serve_locks 1\n", "hasp_serve_waiting 0\n", "hasp_serve_sessions_ended_total 1\n"} {
			if !strings.Contains(w.Body.String(), line) {
				t.Errorf("no line %q in\n%s", line, w.Body)
			}
		}
	})
}

// slowStore lets a keep-alive take as long as the test wants after the store has granted it.
type slowStore struct {
	driver.Backend
	gate chan struct{}
}

type slowSession struct {
	driver.Session
	gate chan struct{}
}

func (b slowStore) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, d, err := b.Backend.Open(ctx, o)
	return slowSession{s, b.gate}, d, err
}

func (s slowSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	d, err := s.Session.KeepAlive(ctx)
	<-s.gate
	return d, err
}

// A keep-alive that the store has granted, and whose answer is on its way while the session would
// be over, is not taken back: its client is about to be told, and will rely on it.
func TestReaperAndKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		c, _ := with(t, serve.Options{Store: slowStore{memlock.New().Backend(), gate}})
		c.open(5 * time.Second)
		c.lock("1", "a")
		time.Sleep(4 * time.Second)
		go func() {
			time.Sleep(4 * time.Second) // the session would have been over at 5, and closed at 7
			gate <- struct{}{}
		}()
		c.want(200, "POST", "/v1/session/keepalive", nil, nil) // counted from 4 on: till 9
		if l := c.lock("1", "a"); l.State != httpapi.Held {
			t.Errorf("the lock is %s", l.State)
		}
	})
}

// A repeated request is harmless, and one that comes late makes nothing.
func TestRepeatedAndLate(t *testing.T) {
	c, _ := with(t, serve.Options{})
	c.open(time.Minute)
	first := c.lock("1", "a")
	if again := c.lock("1", "a"); again.State != httpapi.Held || again.Token != first.Token || again.Entry != first.Entry {
		t.Errorf("first %+v, and again %+v", first, again)
	}
	c.refused(httpapi.Invalid, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "b"})
	for range 2 { // the answer to the first was lost
		c.want(204, "DELETE", "/v1/locks/1", nil, nil)
	}
	c.refused(httpapi.Gone, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a"})
	c.refused(httpapi.Gone, "DELETE", "/v1/locks/7", nil) // overtakes its own request
	c.refused(httpapi.Gone, "PUT", "/v1/locks/7", httpapi.Acquire{Name: "a"})
	var q httpapi.Queue
	c.want(200, "GET", "/v1/queue?name=a", nil, &q)
	if len(q.Entries) != 0 {
		t.Errorf("left: %+v", q.Entries)
	}
	c.lock("8", "a")
	c.want(204, "PUT", "/v1/locks/8/value", httpapi.Value{Value: []byte("new"), Number: 2}, nil)
	c.want(204, "PUT", "/v1/locks/8/value", httpapi.Value{Value: []byte("old"), Number: 1}, nil)
	c.want(200, "GET", "/v1/queue?name=a", nil, &q)
	if len(q.Entries) != 1 || string(q.Entries[0].Value) != "new" {
		t.Errorf("published, and then a late one: %+v", q.Entries)
	}
}

// Requests that wait end when the server is about to end, and can be repeated; what is held is
// kept.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		c, s := with(t, serve.Options{Store: store.Backend()})
		other := &api{t: t, s: c.s}
		c.open(time.Minute)
		other.open(time.Minute)
		c.lock("1", "a")
		other.lock("1", "a")
		ended := make(chan struct{}, 2)
		go func() {
			other.refused(httpapi.Draining, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Wait: 20000})
			ended <- struct{}{}
		}()
		go func() {
			var l httpapi.Lock
			c.want(200, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "b"}, &l)
			other.want(200, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "b", Wait: 20000}, &l)
			if l.State != httpapi.Waiting {
				t.Errorf("the wait has ended with %+v", l)
			}
			ended <- struct{}{}
		}()
		synctest.Wait()
		drained := make(chan struct{})
		began := time.Now()
		go func() {
			s.Drain(t.Context())
			close(drained)
		}()
		<-ended
		<-ended
		if time.Since(began) > time.Second {
			t.Errorf("waits ended after %s", time.Since(began))
		}
		c.refused(httpapi.Draining, "POST", "/v1/session", httpapi.OpenSession{TTL: 1000})
		c.refused(httpapi.Draining, "PUT", "/v1/locks/3", httpapi.Acquire{Name: "c"})
		other.refused(httpapi.Draining, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "b", Wait: 20000})
		var l httpapi.Lock
		other.want(200, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "b"}, &l)
		if l.State != httpapi.Waiting {
			t.Errorf("its place: %+v", l)
		}
		c.want(200, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "b", Wait: 20000}, &l)
		if l.State != httpapi.Held {
			t.Errorf("what is held: %+v", l)
		}
		w := httptest.NewRecorder()
		c.s.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("ready: %d", w.Code)
		}
		c.want(200, "POST", "/v1/session/keepalive", nil, nil)
		select {
		case <-drained:
			t.Error("drained with locks held")
		default:
		}
		other.want(204, "DELETE", "/v1/session", nil, nil)
		c.want(204, "DELETE", "/v1/locks/1", nil, nil)
		c.want(204, "DELETE", "/v1/locks/2", nil, nil)
		<-drained
	})
}

// tokensOf makes tokens, each of a name, rights and a prefix: the server's, and by names those of
// the clients.
func tokensOf(t testing.TB, all ...[3]string) (known *access.Tokens, secret map[string]string) {
	t.Helper()
	secret = map[string]string{}
	lines := ""
	for _, x := range all {
		token, line, err := access.New(x[0], x[1], x[2])
		if err != nil {
			t.Fatal(err)
		}
		secret[x[0]] = token
		lines += line + "\n"
	}
	known, err := access.Read(strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	return known, secret
}

// Tokens, and what each may do.
func TestRights(t *testing.T) {
	known, tokens := tokensOf(t, [3]string{"looker", "look", ""}, [3]string{"locker", "look,lock", "app/"},
		[3]string{"operator", "operate", "app/"}, [3]string{"other", "look,lock,operate", ""})
	var log bytes.Buffer
	c, _ := with(t, serve.Options{Tokens: known, Log: slog.New(slog.NewTextHandler(&log, nil))})
	as := func(name string) *api { return &api{t: t, s: c.s, token: tokens[name]} }

	c.refused(httpapi.NoToken, "GET", "/v1", nil)
	(&api{t: t, s: c.s, token: tokens["looker"][1:]}).refused(httpapi.NoToken, "GET", "/v1", nil)
	looker, locker, operator, other := as("looker"), as("locker"), as("operator"), as("other")
	looker.refused(httpapi.Forbidden, "POST", "/v1/session", httpapi.OpenSession{TTL: 60000})
	looker.want(200, "GET", "/v1/queue?name=app/x", nil, nil)
	locker.open(time.Minute)
	other.open(time.Minute)
	locker.refused(httpapi.Forbidden, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "b"})
	locker.refused(httpapi.Forbidden, "GET", "/v1/queue?name=b", nil)
	other.lock("1", "secret")
	victim := other.lock("2", "app/x")

	// An entry of another is no way to its lock: not by its id, not by taking it over, not by
	// evicting it.
	var l httpapi.Lock
	locker.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "app/x", Entry: victim.Entry}, &l)
	if l.State != httpapi.Waiting || l.Entry == victim.Entry {
		t.Errorf("with another's id the lock is %+v", l)
	}
	locker.refused(httpapi.Forbidden, "POST", "/v1/locks/2/adopt", httpapi.AdoptLock{Acquire: httpapi.Acquire{Name: "app/x"}, From: victim.Entry, Seq: victim.Token})
	locker.refused(httpapi.Forbidden, "POST", "/v1/evict", httpapi.EvictEntry{Name: "app/x", Entry: victim.Entry})
	var names httpapi.NameList
	locker.want(200, "GET", "/v1/names", nil, &names)
	if len(names.Names) != 1 || names.Names[0] != "app/x" {
		t.Errorf("names %q", names.Names)
	}
	// Nor is another's session, should its id become known.
	stolen := as("locker")
	stolen.session = other.session
	stolen.refused(httpapi.SessionGone, "DELETE", "/v1/session", nil)
	locker.refused(httpapi.Forbidden, "GET", "/v1/doctor", nil)
	operator.refused(httpapi.Forbidden, "GET", "/v1/doctor", nil)
	other.want(200, "GET", "/v1/doctor", nil, nil)

	operator.want(204, "POST", "/v1/evict", httpapi.EvictEntry{Name: "app/x", Entry: victim.Entry, Note: "{}"}, nil)
	var e httpapi.Events
	other.want(200, "GET", "/v1/session/events?wait_ms=10000", nil, &e)
	if len(e.Lost) != 1 || e.Lost[0].Lock != 2 {
		t.Errorf("the holder is told %+v", e)
	}
	other.refused(httpapi.Gone, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "app/x"})

	for name, token := range tokens {
		if strings.Contains(log.String(), token) || !strings.Contains(log.String(), "token="+name) {
			t.Errorf("the log shows a token, or not that it was %s's:\n%s", name, log.String())
		}
	}
	for _, secret := range []string{other.session, locker.session, "app/x", victim.Entry} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log shows %q", secret)
		}
	}
}

// What is wrong with a request is said, and what is too much.
func TestRefused(t *testing.T) {
	c, _ := with(t, serve.Options{Limits: serve.Limits{Sessions: 2, Locks: 3, Waiting: 1}})
	c.refused(httpapi.Invalid, "POST", "/v1/session", httpapi.OpenSession{})
	c.refused(httpapi.Invalid, "POST", "/v1/session", httpapi.OpenSession{TTL: 1 << 62})
	c.open(time.Minute)
	holder := c.session
	c.lock("1", "a")
	c.open(time.Minute)
	c.refused(httpapi.Limit, "POST", "/v1/session", httpapi.OpenSession{TTL: 1000})
	c.lock("1", "a")
	c.refused(httpapi.Limit, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "a"})
	c.want(204, "DELETE", "/v1/locks/1", nil, nil)
	for _, n := range []string{"2", "3"} { // the token has another one in the first session
		c.lock(n, "x"+n)
	}
	c.refused(httpapi.Limit, "PUT", "/v1/locks/5", httpapi.Acquire{Name: "y"})
	c.want(204, "DELETE", "/v1/session", nil, nil)
	c.refused(httpapi.SessionGone, "DELETE", "/v1/session", nil)
	c.session = holder
	var l httpapi.Lock
	c.want(200, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "a", NoWait: true}, &l)
	if l.State != httpapi.Busy || l.Holder == "" {
		t.Errorf("a try: %+v", l)
	}
	c.refused(httpapi.Mismatch, "PUT", "/v1/locks/3", httpapi.Acquire{Name: "a", Kind: "semaphore", Capacity: 3})
	for what, body := range map[string]any{
		"an unknown field":              `{"name":"b","nowait":true}`,
		"no JSON":                       `name=b`,
		"two objects":                   `{"name":"b"}{}`,
		"a bracket too many":            `{"name":"b"}}`,
		"a field twice":                 `{"name":"a","name":"b"}`,
		"a field in capitals":           `{"NAME":"b"}`,
		"no UTF-8":                      "{\"name\":\"b\xff\"}",
		"half a character":              `{"name":"b\ud800"}`,
		"a number too large":            `{"name":"b","wait_ms":1e99}`,
		"no name":                       httpapi.Acquire{},
		"a zero byte":                   httpapi.Acquire{Name: "a\x00"},
		"an unknown kind":               httpapi.Acquire{Name: "b", Kind: "spin"},
		"too many permits":              httpapi.Acquire{Name: "b", Kind: "semaphore", Units: 4, Capacity: 3},
		"permits of a mutex":            httpapi.Acquire{Name: "b", Kind: "mutex", Units: 1},
		"a foreign id":                  httpapi.Acquire{Name: "b", Entry: "a b"},
		"a long value":                  httpapi.Acquire{Name: "b", Value: make([]byte, 1025)},
		"a long note":                   httpapi.Acquire{Name: "b", Note: strings.Repeat("x", 1025)},
		"a note beside an owner":        httpapi.Acquire{Name: "b", Owner: "{}", Note: "x"},
		"an ask that no holder can see": httpapi.Acquire{Name: "b", Asks: "please", NoWait: true},
		"a zero byte in an owner":       httpapi.Acquire{Name: "b", Owner: "x\x00"},
		"a zero byte in a note":         httpapi.Acquire{Name: "b", Note: "x\x00"},
		"a zero byte in a request":      httpapi.Acquire{Name: "b", Asks: "x\x00"},
		"a long owner":                  httpapi.Acquire{Name: "b", Owner: strings.Repeat("x", 2049)},
		"a long body":                   `{"name":"b","note":"` + strings.Repeat("x", 20000) + `"}`,
		"both ways to wait":             httpapi.Acquire{Name: "b", NoWait: true, Wait: 1},
	} {
		t.Log(what)
		c.refused(httpapi.Invalid, "PUT", "/v1/locks/9", body)
	}
	for _, id := range []string{"", strings.Repeat("i", 41), "a b", "x\x00"} {
		c.refused(httpapi.Invalid, "POST", "/v1/locks/9/adopt", httpapi.AdoptLock{Acquire: httpapi.Acquire{Name: "b"}, From: id, Seq: 1})
	}
	c.refused(httpapi.Invalid, "PUT", "/v1/locks/9", httpapi.Acquire{Name: "b", Entry: strings.Repeat("i", 41)})
	c.refused(httpapi.Invalid, "PUT", "/v1/locks/0", httpapi.Acquire{Name: "b"})
	c.refused(httpapi.Invalid, "PUT", "/v1/locks/-1", httpapi.Acquire{Name: "b"})
	c.refused(httpapi.NotFound, "POST", "/v1/locks", nil)
	c.refused(httpapi.Method, "GET", "/v1/session", nil)
	c.want(200, "PUT", "/v1/locks/9", httpapi.Acquire{Name: "b", Kind: "read"}, nil) // its number is still free
}

// Who asks is said once: a proxy in between may go by the other.
func TestHeadersTwice(t *testing.T) {
	c, _ := with(t, serve.Options{})
	c.open(time.Minute)
	for _, head := range []string{"Authorization", httpapi.SessionHeader} {
		for times, want := range []int{0: 200, 1: 400} {
			q := httptest.NewRequest("POST", "http://127.0.0.1:7070/v1/session/keepalive", nil)
			q.Header.Set(httpapi.SessionHeader, c.session)
			q.Header.Set("Authorization", "Bearer x")
			for range times {
				q.Header.Add(head, "Bearer y")
			}
			w := httptest.NewRecorder()
			if c.s.ServeHTTP(w, q); w.Code != want {
				t.Errorf("%s %d times more: %d, want %d", head, times, w.Code, want)
			}
		}
	}
}

// A client that waits asks the holder, which is told why and gives the lock up.
func TestAsks(t *testing.T) {
	store := memlock.New()
	c, _ := with(t, serve.Options{Store: store.Backend()})
	holders, err := hasp.New(store.Backend())
	if err != nil {
		t.Fatal(err)
	}
	asked, held := make(chan hasp.Owner, 1), make(chan *hasp.Lease, 1)
	l, err := holders.Mutex("a", hasp.Revocable(0, func(by hasp.Owner) {
		asked <- by
		_ = (<-held).Release(context.Background())
	})).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	held <- l
	c.open(time.Minute)
	var got httpapi.Lock
	c.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Note: "a deploy", Asks: "please", Wait: 20_000}, &got)
	if by := <-asked; by.Asks != "please" || by.Note != "a deploy" || got.State != httpapi.Held {
		t.Errorf("asked by %+v; the lock is %+v", by, got)
	}
}

// The log has the id of the request's trace, and nothing of a header that is none.
func TestTraceInTheLog(t *testing.T) {
	var log bytes.Buffer
	c, _ := with(t, serve.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for sent, logged := range map[string]string{
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01":   "trace=4bf92f3577b34da6a3ce929d0e0e4736",
		"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x": "trace=4bf92f3577b34da6a3ce929d0e0e4736",
		"":                      `trace=""`,
		"00-secret-00f067aa-01": `trace=""`,
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01":     `trace=""`,
		"x00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01":    `trace=""`,
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n-x": `trace=""`,
	} {
		log.Reset()
		q := httptest.NewRequest("GET", "http://127.0.0.1:7070/v1", nil)
		q.Header.Set("Traceparent", sent)
		c.s.ServeHTTP(httptest.NewRecorder(), q)
		if !strings.Contains(log.String(), logged) {
			t.Errorf("%q is logged as %s", sent, log.String())
		}
	}
}

// A web page that a browser of this machine shows can neither use the server, nor by another name
// for this machine's address.
func TestBrowser(t *testing.T) {
	c, _ := with(t, serve.Options{})
	for _, change := range []func(*http.Request){
		func(q *http.Request) { q.Header.Set("Sec-Fetch-Site", "cross-site") },
		func(q *http.Request) { q.Header.Set("Origin", "https://evil.example.com") },
		func(q *http.Request) { q.Host = "evil.example.com:7070" },
	} {
		q := httptest.NewRequest("POST", "http://127.0.0.1:7070/v1/session", strings.NewReader(`{"ttl_ms":1000}`))
		change(q)
		w := httptest.NewRecorder()
		c.s.ServeHTTP(w, q)
		if w.Code != http.StatusForbidden {
			t.Errorf("%d for %v at %s", w.Code, q.Header, q.Host)
		}
	}
	// What only reads is refused as well: each of these waits for the store.
	get := func(path string, head ...string) int {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // for what would go on
		defer cancel()
		q := httptest.NewRequestWithContext(ctx, "GET", "http://127.0.0.1:7070"+path, nil)
		for i := 0; i < len(head); i += 2 {
			q.Header.Set(head[i], head[i+1])
		}
		w := httptest.NewRecorder()
		c.s.ServeHTTP(w, q)
		return w.Code
	}
	for _, path := range []string{"/v1", "/v1/names", "/v1/queue?name=a", "/v1/watch?name=a", "/metrics", "/page/queue?name=a", "/page/events", "/"} {
		for _, head := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example.com"}} {
			if code := get(path, head...); code != http.StatusForbidden {
				t.Errorf("GET %s: %d for %v", path, code, head)
			}
		}
	}
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	if a, b, c, d := get("/", link...), get("/v1/names", link...), get("/v1/names", "Sec-Fetch-Site", "same-origin"), get("/v1/names"); a != 200 || b != 403 || c != 200 || d != 200 {
		t.Errorf("a link to the page %d, to the API %d; the API by this site %d, by a program %d", a, b, c, d)
	}
	c.open(time.Second) // the control
}

// bound is a store whose locks would be free as soon as the server dies.
type bound struct {
	driver.Backend
	l driver.Liveness
}

func (b bound) Traits() driver.Traits {
	t := b.Backend.Traits()
	t.Liveness = b.l
	return t
}

func TestOnlyLeases(t *testing.T) {
	for _, l := range []driver.Liveness{driver.ProcessBound, driver.ConnectionBound} {
		if _, err := serve.New(serve.Options{Store: bound{memlock.New().Backend(), l}}); err == nil || !strings.Contains(err.Error(), l.String()) {
			t.Errorf("%s: %v", l, err)
		}
	}
}
