package serve_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
)

// A portal in between answers 200 to everything, with a page, or with some JSON. That is no
// answer: nothing is released, evicted or lost by it, no queue is empty, and what is held is still
// held when the portal has gone.
func TestPortal(t *testing.T) {
	for what, says := range map[string]string{
		"a page": "<html>sign in</html>", "an empty object": "{}", "another object": `{"ok":true}`, "null": "null", "nothing": "",
		"an answer of another request": `{"valid_ms":60000,"state":"held","token":1}`,
	} {
		t.Run(what, func(t *testing.T) {
			p := newPair(t, nil, "")
			// A second session has the request for events: the portal is not to meet it.
			s := testkit.Session(t, p.b, time.Minute, func(id string, err error) { p.gone <- id })
			r := testkit.Request("a")
			ticket := s.Ticket(r)
			held, err := ticket.Enqueue(t.Context())
			if err != nil || !held.Held {
				t.Fatal(held, err)
			}
			portal := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, says)
			}))
			defer portal.Close()
			p.front.lead(strings.TrimPrefix(portal.URL, "http://"))
			unknown := func(what string, err error) {
				t.Helper()
				if err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrForgotten) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if says != `{"valid_ms":60000,"state":"held","token":1}` { // that is a keep-alive's, and a lock's
				_, err = s.KeepAlive(t.Context())
				unknown("keep-alive", err)
				_, err = ticket.Enqueue(t.Context())
				unknown("asked again", err)
			}
			_, err = p.b.List(t.Context(), "a", 0)
			unknown("list", err)
			unknown("names", p.b.(driver.Namer).Names(t.Context(), "", func(string) bool { return true }))
			_, _, err = p.b.Open(t.Context(), driver.SessionOptions{TTL: time.Minute, Gone: func(string, error) {}})
			unknown("open", err)
			unknown("publish", ticket.(driver.Publisher).Publish(t.Context(), []byte("x")))
			unknown("downgrade", ticket.(driver.Downgrader).Downgrade(t.Context(), 1))
			unknown("evict", p.b.(driver.Evicter).Evict(t.Context(), "a", r.ID, ""))
			unknown("release", ticket.Leave(t.Context()))
			unknown("close", s.Close(t.Context()))
			if e := p.entries(t, "a"); len(e) != 1 || e[0].Units != driver.Whole || len(e[0].Value) > 0 {
				t.Errorf("the store has %+v", e)
			}
			p.front.lead(p.addrs[0])
			if err := ticket.Leave(t.Context()); err != nil {
				t.Errorf("release without the portal: %v", err)
			}
			p.wantGone(t)
		})
	}
}

// An adoption that a portal answers is no loss: it is asked for again.
func TestPortalAdopts(t *testing.T) {
	p := newPair(t, nil, "")
	portal := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"state":""}`)
	}))
	defer portal.Close()
	p.lock(t, "a")
	met := 0 // guarded by the front's mutex
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		if strings.HasSuffix(q.URL.Path, "/adopt") && met < 3 {
			met++
			return strings.TrimPrefix(portal.URL, "http://"), nil
		}
		return "", nil
	})
	p.front.lead(p.addrs[1])
	p.keepAlive(t)
	p.wantGone(t)
	if met < 3 {
		t.Errorf("the portal has answered %d adoptions: this has shown little", met)
	}
}

// The next session is renewed before it adopts, and that is answered with less than the core trusts
// the lock for: as a whole, or for a lock that is late. Nothing is adopted by it before it is
// renewed for long enough.
func TestNextIsRenewedForTooLittle(t *testing.T) {
	for what, says := range map[string]string{
		"a shorter time": `{"valid_ms":10000}`,
		"a late lock":    `{"valid_ms":60000,"late":[{"lock":1,"valid_ms":20000}],"error":"a node is silent"}`,
		"a portal":       `{"valid_ms":0}`,
	} {
		t.Run(what, func(t *testing.T) {
			p := newPair(t, nil, "")
			little := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, says) }))
			defer little.Close()
			opening, answer := make(chan struct{}, 10), make(chan struct{})
			old, renewals, adoptions := "", 0, 0 // guarded by the front's mutex
			p.front.split(func(q *http.Request) (string, <-chan struct{}) {
				session := q.Header.Get(httpapi.SessionHeader)
				switch {
				case q.URL.Path == "/v1/session" && q.Method == http.MethodPost:
					opening <- struct{}{}
					return p.addrs[1], answer
				case old == "":
					old = session
				}
				switch {
				case session == old:
					return p.addrs[0], nil
				case strings.HasSuffix(q.URL.Path, "/adopt"):
					if adoptions++; renewals < 4 {
						t.Errorf("an adoption after %d renewals, none of which was for long enough", renewals)
					}
				case strings.HasSuffix(q.URL.Path, "/keepalive"):
					if renewals++; renewals < 4 {
						return strings.TrimPrefix(little.URL, "http://"), nil
					}
				}
				return p.addrs[1], nil
			})
			p.lock(t, "a")
			go p.first.Drain(t.Context())
			testkit.Await(t, "the new session to be asked for", opening)
			if granted, err := p.s.KeepAlive(t.Context()); err != nil || granted != time.Minute {
				t.Fatalf("a keep-alive at a server that is about to end: %s, %v", granted, err)
			}
			close(answer)
			testkit.Eventually(t, "the adoption", func() bool {
				_, _ = p.s.KeepAlive(t.Context())
				p.front.mu.Lock()
				defer p.front.mu.Unlock()
				return adoptions > 0
			})
			p.keepAlive(t)
			p.wantGone(t)
		})
	}
}

// grantsLess is a store that grants most at most.
type grantsLess struct {
	driver.Backend
	most time.Duration
}

func (b grantsLess) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return lessSession{s, b.most}, min(granted, b.most), err
}

type lessSession struct {
	driver.Session
	most time.Duration
}

func (s lessSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	granted, err := s.Session.KeepAlive(ctx)
	return min(granted, s.most), err
}

// The server that a session moves to grants less than the one before. It adopts nothing while the
// core trusts the lock for longer than that.
func TestMoveToLess(t *testing.T) {
	most := time.Minute
	p := newPairOf(t, func(b driver.Backend) driver.Backend {
		b = grantsLess{b, most}
		most = time.Second // of the second
		return b
	}, nil, "")
	s := testkit.Session(t, p.b, 3*time.Second, func(string, error) {})
	if v, err := s.Ticket(testkit.Request("a")).Enqueue(t.Context()); err != nil || !v.Held {
		t.Fatal(v, err)
	}
	began := time.Now()
	if granted, err := s.KeepAlive(t.Context()); err != nil || granted != 3*time.Second {
		t.Fatal(granted, err)
	}
	var adopted atomic.Pointer[time.Time]
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		if now := time.Now(); strings.HasSuffix(q.URL.Path, "/adopt") {
			adopted.CompareAndSwap(nil, &now)
		}
		return "", nil
	})
	p.front.lead(p.addrs[1])
	testkit.Eventually(t, "the adoption", func() bool {
		_, _ = s.KeepAlive(t.Context())
		return adopted.Load() != nil
	})
	if took := adopted.Load().Sub(began); took < 2*time.Second {
		t.Errorf("adopted after %s by a session that lasts a second, and the lock is trusted for three", took)
	}
}
