package serve_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/memlock"
)

// FuzzAPI sends several requests of one client, a line each: method, path and body, with one blank
// between. The client may lock and look at names that begin with "mine/". Each answer is as the
// document says and comes in time; no secret and no name of others is in one; and another client's
// lock stays held.
func FuzzAPI(f *testing.F) {
	for _, lines := range []string{
		"GET /v1\nGET /v1/openapi.json\nGET /metrics\nGET /healthz\nGET /readyz\nGET /nowhere",
		`POST /v1/session {"ttl_ms":60000}` + "\n" + `PUT /v1/locks/1 {"name":"mine/a","kind":"write","value":"eA==","note":"why"}` + "\n" + `PUT /v1/locks/2 {"name":"mine/a","kind":"read","wait_ms":5}` +
			"\n" + `PUT /v1/locks/2 {"name":"a","wait_ms":1}` + "\n" + `PUT /v1/locks/1/value {"value":"eQ==","number":3}` + "\n" + `POST /v1/locks/1/downgrade {"units":1}` + "\nPOST /v1/session/keepalive\n" +
			"GET /v1/session/events?after=0&wait_ms=1\nDELETE /v1/locks/1\nDELETE /v1/session",
		"GET /v1/queue?name=other/held\nGET /v1/queue?name=mine/a&limit=1\nGET /v1/names?prefix=\nGET /v1/watch?name=mine/a\nGET /v1/eviction?name=mine/a\nGET /v1/quarantine?name=mine/a\nGET /v1/doctor\nGET /v1/warnings",
		`POST /v1/evict {"name":"other/held","entry":"x","note":"{}"}` + "\n" + `POST /v1/evict {"name":"mine/a","from_session":"x","from_lock":1}`,
		`PUT /v1/locks/1 {"name":"other/held"}` + "\n" + `PUT /v1/locks/9223372036854775807 {"name":"mine/a","kind":"semaphore","capacity":3,"units":2}` + "\n" + `POST /v1/locks/3/adopt {"name":"mine/a","from":"x","seq":1,"from_session":"x","from_lock":1}`,
		`PUT /v1/locks/1 {"name":"mine/a","units":-1,"capacity":2147483648}` + "\n" + `PUT /v1/locks/0 {` + "\nPUT /v1/locks/x\nPUT //v1/../v1/locks/1\nBREW /v1/session {}",
	} {
		f.Add(lines)
	}
	known, token := tokensOf(f, [3]string{"mine", "look,lock", "mine/"}, [3]string{"theirs", "look,lock,operate", "*"})
	secret, theirs := token["mine"], token["theirs"]
	if h := known.Find(secret); !h.May(access.Lock, "mine/a") || !h.May(access.Look, "mine/a") || h.May(access.Look, "other/held") {
		f.Fatal("the client has other rights than are said: what it may not do is refused early, and not tested")
	}
	f.Fuzz(func(t *testing.T, lines string) {
		store := memlock.New()
		c, _ := with(t, serve.Options{Store: store.Backend(), Tokens: known})
		c.token = theirs
		c.open(time.Minute)
		held, theirSession := c.lock("1", "other/held"), c.session
		mine := &fuzzed{t: t, api: c, secrets: []string{secret, theirs, theirSession, "other/", held.Entry}}
		c.token, c.session = secret, ""
		requests := strings.Split(lines, "\n")
		for _, text := range requests[:min(len(requests), 20)] {
			mine.send(text)
		}
		all, err := store.Backend().List(t.Context(), "other/held", 0)
		if err != nil || len(all) != 1 || all[0].Seq != held.Token || all[0].Units != driver.Whole {
			t.Errorf("another client's lock: %+v, %v", all, err)
		}
	})
}

type fuzzed struct {
	t       *testing.T
	api     *api
	secrets []string
}

// send makes one request, and checks its answer.
func decode(t *testing.T, text []byte, into any) {
	if err := json.Unmarshal(text, into); err != nil {
		t.Errorf("%s: %v", text, err)
	}
}

func (c *fuzzed) send(text string) {
	method, rest, _ := strings.Cut(text, " ")
	path, body, _ := strings.Cut(rest, " ")
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Millisecond) // what waits ends with its client
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, "http://127.0.0.1:7070"+path, strings.NewReader(body))
	if err != nil || !strings.HasPrefix(path, "/") {
		return // net/http lets no such request through
	}
	q.RemoteAddr = "127.0.0.1:1"
	q.Header.Set("Authorization", "Bearer "+c.api.token)
	q.Header.Set(httpapi.SessionHeader, c.api.session)
	w := httptest.NewRecorder()
	began := time.Now()
	c.api.s.ServeHTTP(w, q)
	if took := time.Since(began); took > 20*time.Second {
		c.t.Errorf("%q: answered after %s", text, took)
	}
	if w.Code == http.StatusCreated {
		var opened httpapi.Session
		decode(c.t, w.Body.Bytes(), &opened)
		c.api.session = opened.Session
	}
	answer := w.Body.String()
	for _, s := range c.secrets {
		if strings.Contains(answer, s) && !strings.Contains(text, s) {
			c.t.Errorf("%q: the answer has %q: %s", text, s, answer)
		}
	}
	pattern := patternOf(q)
	switch {
	case w.Code >= 400:
		var p httpapi.Problem
		decode(c.t, w.Body.Bytes(), &p)
		kind, _ := strings.CutPrefix(p.Type, httpapi.ProblemType)
		if !slices.Contains(httpapi.ProblemTypes(), kind) || p.Status != w.Code || w.Code == http.StatusInternalServerError {
			c.t.Errorf("%q: %d: %s", text, w.Code, answer)
		}
	case pattern == "":
		if w.Code < 300 && !slices.Contains([]string{"/v1/openapi.json", "/healthz", "/readyz"}, q.URL.Path) {
			c.t.Errorf("%q: %d for no operation: %s", text, w.Code, answer)
		}
	default:
		if err := serve.ValidateAnswer(pattern, w.Code, w.Body.Bytes()); err != nil {
			c.t.Errorf("%q: %d: %v\n%s", text, w.Code, err, answer)
		}
	}
}

// patternOf is the operation that a request is for, "" for none that the document has.
func patternOf(q *http.Request) string {
	mux := http.NewServeMux()
	for _, p := range serve.Patterns() {
		mux.HandleFunc(p, func(http.ResponseWriter, *http.Request) {})
	}
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	_, pattern := mux.Handler(q)
	if pattern == "/" || strings.Contains(q.URL.Path, "//") || strings.Contains(q.URL.Path, "/.") {
		return ""
	}
	return pattern
}
