package s3lock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/s3lock"
)

// A gateway between hasp and the store, as some that people run behave.
type gateway func(next http.Handler) http.Handler

func intercept(f func(w http.ResponseWriter, r *http.Request, next http.Handler)) gateway {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f(w, r, next) })
	}
}

func conditional(r *http.Request) bool {
	return r.Method == http.MethodPut && (r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != "")
}

func xmlError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>planted</Message></Error>", code)
}

// looksFirst looks whether the condition holds, and then writes without it: what comes between is
// overwritten, and both are told that they have won. It does so with each in n races.
func looksFirst(n int) gateway {
	return intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !conditional(r) || rand.N(n) > 0 {
			next.ServeHTTP(w, r)
			return
		}
		look := httptest.NewRecorder()
		next.ServeHTTP(look, httptest.NewRequest(http.MethodGet, r.URL.String(), nil))
		held := r.Header.Get("If-None-Match") != "" && look.Code == http.StatusNotFound ||
			r.Header.Get("If-Match") != "" && strings.Trim(r.Header.Get("If-Match"), `"`) == strings.Trim(look.Header().Get("ETag"), `"`)
		time.Sleep(time.Duration(rand.N(20)) * time.Millisecond)
		if held {
			r.Header.Del("If-None-Match")
			r.Header.Del("If-Match")
		}
		next.ServeHTTP(w, r)
	})
}

// mixer answers a read with the body before the last write and the ETag of the last, when it mixes.
type mixer struct {
	mixes  func(r *http.Request) bool
	mu     sync.Mutex
	bodies map[string][2]*httptest.ResponseRecorder // the last two answers to reads that differ, by path
}

func (m *mixer) gateway() gateway {
	m.bodies = map[string][2]*httptest.ResponseRecorder{}
	return intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method != http.MethodGet || r.URL.RawQuery != "" && !strings.Contains(r.URL.RawQuery, "x-id") {
			next.ServeHTTP(w, r)
			return
		}
		now := httptest.NewRecorder()
		next.ServeHTTP(now, r)
		m.mu.Lock()
		seen := m.bodies[r.URL.Path]
		if now.Code == http.StatusOK && (seen[1] == nil || !bytes.Equal(seen[1].Body.Bytes(), now.Body.Bytes())) {
			seen = [2]*httptest.ResponseRecorder{seen[1], now}
			m.bodies[r.URL.Path] = seen
		}
		m.mu.Unlock()
		body, header := now.Body.Bytes(), now.Header()
		if seen[0] != nil && now.Code == http.StatusOK && m.mixes(r) {
			body = seen[0].Body.Bytes() // metadata goes with the ETag: both are attributes of a file there
			header.Set("Content-Length", strconv.Itoa(len(body)))
		}
		for k, v := range header {
			w.Header()[k] = v
		}
		w.WriteHeader(now.Code)
		w.Write(body)
	})
}

// weak has the ETags of a proxy that compresses.
var weak = intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r)
	for k, v := range answer.Header() {
		w.Header()[k] = v
	}
	if etag := answer.Header().Get("ETag"); etag != "" {
		w.Header().Set("ETag", "W/"+etag)
	}
	w.WriteHeader(answer.Code)
	w.Write(answer.Body.Bytes())
})

// opaque has ETags that are no MD5, as buckets with SSE-KMS do.
var opaque = intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
	const mark = "0ff1ce"
	for _, h := range []string{"If-Match", "If-None-Match"} {
		if v := r.Header.Get(h); strings.Contains(v, mark) {
			r.Header.Set(h, strings.Replace(v, mark, "", 1))
		}
	}
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r)
	for k, v := range answer.Header() {
		w.Header()[k] = v
	}
	if etag := strings.Trim(answer.Header().Get("ETag"), `"`); etag != "" {
		w.Header().Set("ETag", `"`+mark+etag+`"`)
	}
	w.WriteHeader(answer.Code)
	w.Write(answer.Body.Bytes())
})

// Gateways that break what locks need are refused, each time, and by what they do.
func TestGatewaysRefused(t *testing.T) {
	always := intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if conditional(r) {
			xmlError(w, http.StatusPreconditionFailed, "PreconditionFailed")
			return
		}
		next.ServeHTTP(w, r)
	})
	for what, c := range map[string]struct {
		gateway
		want string
	}{
		"several win":          {looksFirst(1), "succeeded at the same time"},
		"several win at times": {looksFirst(2), "succeeded at the same time"},
		"mixed reads":          {(&mixer{mixes: func(*http.Request) bool { return rand.N(3) == 0 }}).gateway(), "the body of one write and the ETag of another"},
		"412 always":           {always, "none succeeds"},
		"weak ETags":           {weak, "compresses"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.gateway)
			for range 3 {
				b, err := s3lock.Open(t.Context(), s.url("x"))
				if err == nil {
					b.Close()
					t.Fatal("it was accepted")
				}
				if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v", err)
				}
			}
		})
	}
}

// What a store may do is borne: to refuse some requests, to take one write a second and key, to have
// ETags that are no MD5.
func TestGatewaysBorne(t *testing.T) {
	refuses := intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if rand.N(20) == 0 {
			xmlError(w, http.StatusServiceUnavailable, "SlowDown")
			return
		}
		next.ServeHTTP(w, r)
	})
	var mu sync.Mutex
	last := map[string]time.Time{}
	oneASecond := intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodPut {
			mu.Lock()
			early := time.Since(last[r.URL.Path]) < time.Second
			if !early {
				last[r.URL.Path] = time.Now()
			}
			mu.Unlock()
			if early {
				xmlError(w, http.StatusTooManyRequests, "TooManyRequests")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
	for what, g := range map[string]gateway{"503": refuses, "one a second": oneASecond, "opaque": opaque} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := serve(t, g)
			for i := range 3 {
				began := time.Now()
				open(t, s.url("x")).Close()
				t.Logf("opened in %s, %d requests so far", time.Since(began), s.requests.Load())
				if took := time.Since(began); took > 9*time.Second { // the command gives up at ten
					t.Errorf("opening %d took %s", i, took)
				}
			}
		})
	}
}

// A read that mixes two writes is found out when a record is loaded, also where ETags are no MD5: it is
// read again, and is an error where that goes on.
func TestMixedRecords(t *testing.T) {
	for what, inner := range map[string]gateway{"MD5": intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) }), "opaque": opaque} {
		t.Run(what, func(t *testing.T) {
			var mixed atomic.Int64 // reads that are still to be mixed
			m := &mixer{mixes: func(r *http.Request) bool { return !strings.Contains(r.URL.Path, "PROBE") && mixed.Add(-1) >= 0 }}
			outer := m.gateway()
			s := serve(t, func(h http.Handler) http.Handler { return outer(inner(h)) })
			b := open(t, s.url("x"))
			session := testkit.Session(t, b, time.Minute, func(id string, err error) { t.Errorf("%s is gone: %v", id, err) })
			ticket := session.Ticket(testkit.Request("n"))
			testkit.Held(t, ticket)
			for range 2 { // the mixer has seen two writes
				if _, err := session.KeepAlive(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := b.List(t.Context(), "n", 1); err != nil {
					t.Fatal(err)
				}
			}
			mixed.Store(3)
			if all, err := b.List(t.Context(), "n", 1); err != nil || len(all) != 1 || mixed.Load() > 0 {
				t.Errorf("after three mixed reads, %d of them left: %v, %v", mixed.Load(), all, err)
			}
			mixed.Store(1000)
			if _, err := b.List(t.Context(), "n", 1); err == nil || !strings.Contains(err.Error(), "the ETag of another") {
				t.Errorf("where all reads are mixed: %v", err)
			}
			mixed.Store(0)
		})
	}
}

// A balancer's plain 404, 409 or 412 says nothing of an object: a lock that is held stays held, and
// one that is not known to be free is not taken.
func TestBalancer(t *testing.T) {
	for _, status := range []int{404, 409, 412} {
		var down atomic.Bool
		s := serve(t, intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if down.Load() {
				http.Error(w, "no backend", status)
				return
			}
			next.ServeHTTP(w, r)
		}))
		b := open(t, s.url("x"))
		session := testkit.Session(t, b, time.Minute, func(id string, err error) { t.Errorf("%d: %s is gone: %v", status, id, err) })
		ticket := session.Ticket(testkit.Request("n"))
		testkit.Held(t, ticket)
		down.Store(true)
		for i := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			// The second finds a record that was renewed just now, and does not ask.
			if _, err := session.KeepAlive(ctx); i == 0 && err == nil || errors.Is(err, driver.ErrGone) {
				t.Errorf("%d: a renewal: %v", status, err)
			}
			if v, err := session.Ticket(testkit.Request("other")).Enqueue(ctx); err == nil || v.Held {
				t.Errorf("%d: another name: %+v, %v", status, v, err)
			}
			cancel()
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
