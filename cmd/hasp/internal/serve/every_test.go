package serve_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/internal/httpapi"
)

// leaver is a client that leaves when it has a line.
type leaver struct {
	*httptest.ResponseRecorder
	leave func()
}

func (l leaver) Flush() {
	l.ResponseRecorder.Flush()
	l.leave()
}

// Every operation is called, and what it answers is as the document says.
func TestEveryOperation(t *testing.T) {
	c, _ := with(t, serve.Options{})
	called := map[string]bool{}
	call := func(pattern, path string, body any) httpapi.Lock {
		t.Helper()
		method, _, _ := strings.Cut(pattern, " ")
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		q := httptest.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(string(text)))
		if body == nil {
			q.Body = io.NopCloser(strings.NewReader(""))
		}
		q.Header.Set(httpapi.SessionHeader, c.session)
		w := httptest.NewRecorder()
		if pattern == "GET /v1/watch" { // it goes on until its client leaves: after the first line
			c.s.ServeHTTP(leaver{w, cancel}, q)
		} else {
			c.s.ServeHTTP(w, q)
		}
		if err := serve.ValidateAnswer(pattern, w.Code, w.Body.Bytes()); err != nil {
			t.Errorf("%s: %v\n%s", pattern, err, w.Body)
		}
		called[pattern] = true
		var l httpapi.Lock
		_ = json.Unmarshal(w.Body.Bytes(), &l) // of most operations it is none
		return l
	}
	call("GET /v1", "/v1", nil)
	call("POST /v1/session", "/v1/session", httpapi.OpenSession{TTL: 60000})
	c.open(time.Minute)
	held := call("PUT /v1/locks/{number}", "/v1/locks/1", httpapi.Acquire{Name: "a", Kind: "write", Value: []byte("v"), Note: "why"})
	call("PUT /v1/locks/{number}", "/v1/locks/2", httpapi.Acquire{Name: "a", Kind: "read"})
	call("PUT /v1/locks/{number}", "/v1/locks/3", httpapi.Acquire{Name: "a", NoWait: true})
	call("GET /v1/queue", "/v1/queue?name=a&limit=5", nil)
	call("GET /v1/names", "/v1/names?prefix=a", nil)
	call("GET /v1/watch", "/v1/watch?name=a", nil)
	call("PUT /v1/locks/{number}/value", "/v1/locks/1/value", httpapi.Value{Value: []byte("w")})
	call("POST /v1/locks/{number}/adopt", "/v1/locks/4/adopt", httpapi.AdoptLock{Acquire: httpapi.Acquire{Name: "a"}, From: held.Entry, Seq: held.Token})
	evicted := call("PUT /v1/locks/{number}", "/v1/locks/5", httpapi.Acquire{Name: "b"})
	call("POST /v1/evict", "/v1/evict", httpapi.EvictEntry{Name: "b", Entry: evicted.Entry, Note: "{}"})
	call("GET /v1/eviction", "/v1/eviction?name=b", nil)
	call("GET /v1/session/events", "/v1/session/events?wait_ms=10", nil)
	call("POST /v1/session/keepalive", "/v1/session/keepalive", nil)
	call("DELETE /v1/locks/{number}", "/v1/locks/2", nil)
	call("GET /v1/quarantine", "/v1/quarantine?name=a", nil)
	call("GET /v1/doctor", "/v1/doctor", nil)
	call("GET /v1/warnings", "/v1/warnings", nil)
	call("GET /metrics", "/metrics", nil)
	call("PUT /v1/locks/{number}", "/v1/locks/6", httpapi.Acquire{Name: "c", Kind: "write"})
	call("POST /v1/locks/{number}/downgrade", "/v1/locks/6/downgrade", httpapi.Smaller{Units: 1})
	call("DELETE /v1/session", "/v1/session", nil)
	for _, p := range serve.Patterns() {
		if !called[p] {
			t.Errorf("%s was not called", p)
		}
	}
	w := httptest.NewRecorder()
	c.s.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/v1/openapi.json", nil))
	if w.Code != http.StatusOK || !json.Valid(w.Body.Bytes()) {
		t.Errorf("the document: %d", w.Code)
	}
}
