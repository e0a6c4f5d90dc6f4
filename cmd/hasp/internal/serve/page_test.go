package serve_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// tab makes requests as the page in a browser does.
type tab struct {
	t    *testing.T
	addr string
	jar  []*http.Cookie
	head map[string]string
}

func (b *tab) do(method, path, body string) *http.Response {
	b.t.Helper()
	q, err := http.NewRequestWithContext(testkit.Context(b.t), method, "http://"+b.addr+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	for k, v := range b.head {
		q.Header.Set(k, v)
	}
	if host := b.head["Host"]; host != "" {
		q.Host = host
	}
	for _, c := range b.jar {
		q.AddCookie(c)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, err := client.Do(q)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { r.Body.Close() })
	return r
}

func (b *tab) status(want int, method, path, body string) {
	b.t.Helper()
	if r := b.do(method, path, body); r.StatusCode != want {
		text, _ := io.ReadAll(r.Body)
		b.t.Errorf("%s %s: status %d, want %d: %s", method, path, r.StatusCode, want, text)
	}
}

// signIn keeps the cookie that the server sets.
func (b *tab) signIn(token string) *http.Cookie {
	b.t.Helper()
	b.head = map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	r := b.do("POST", "/page/login", url.Values{"token": {token}}.Encode())
	b.head = map[string]string{}
	b.jar = r.Cookies()
	if len(b.jar) != 1 || r.StatusCode != http.StatusSeeOther {
		b.t.Fatalf("status %d, cookies %v", r.StatusCode, b.jar)
	}
	return b.jar[0]
}

// event is one of the page's stream.
type event struct {
	kind, data string
}

// events reads the stream until the test ends.
func (b *tab) events() <-chan event {
	b.t.Helper()
	r := b.do("GET", "/page/events", "")
	if r.StatusCode != http.StatusOK {
		b.t.Fatalf("status %d", r.StatusCode)
	}
	all := make(chan event, 1000)
	go func() {
		defer close(all)
		var e event
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			kind, isKind := strings.CutPrefix(lines.Text(), "event: ")
			data, isData := strings.CutPrefix(lines.Text(), "data: ")
			switch {
			case isKind:
				e.kind = kind
			case isData:
				e.data = data
				all <- e
			}
		}
	}()
	return all
}

// rows reads events until the names of the list are the given ones.
func rows(t *testing.T, all <-chan event, want ...string) {
	t.Helper()
	names := map[string]bool{}
	timeout := time.After(testkit.Patience)
	for {
		if len(names) == len(want) {
			all := true
			for _, name := range want {
				all = all && names[name]
			}
			if all {
				return
			}
		}
		select {
		case e, ok := <-all:
			if !ok {
				t.Fatalf("the stream has ended; the names are %v", names)
			}
			if e.kind != "list" && e.kind != "change" {
				continue
			}
			var c struct {
				Set  []struct{ Name string }
				Gone []string
			}
			if err := json.Unmarshal([]byte(e.data), &c); err != nil {
				t.Fatal(err)
			}
			for _, r := range c.Set {
				names[r.Name] = true
			}
			for _, name := range c.Gone {
				delete(names, name)
			}
		case <-timeout:
			t.Fatalf("the names are %v, want %v", names, want)
		}
	}
}

// The first paint has the rows, as text, and the headers that keep other pages out.
func TestPageFirstPaint(t *testing.T) {
	store := memlock.New()
	_, addr := start(t, serve.Options{Store: store.Backend()})
	c, err := hasp.New(store.Backend())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Mutex("a<b", hasp.Note("<script>alert(1)</script>@ROWS@")).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := &tab{t: t, addr: addr}
	r := b.do("GET", "/", "")
	text, _ := io.ReadAll(r.Body)
	if !strings.Contains(string(text), `<span role="rowheader">a&lt;b</span>`) || strings.Contains(string(text), "<script>alert") {
		t.Errorf("the page has not the lock as text:\n%s", text)
	}
	policy := r.Header.Get("Content-Security-Policy")
	if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || r.Header.Get("X-Frame-Options") != "DENY" {
		t.Errorf("headers: %v", r.Header)
	}
	b.status(http.StatusOK, "GET", "/page.js", "")
	b.status(http.StatusOK, "GET", "/page.css", "")
}

// The list follows the store, and the stream ends when the server drains. After the last page
// nothing is read for pages.
func TestPageFollows(t *testing.T) {
	store := memlock.New()
	s, addr := start(t, serve.Options{Store: store.Backend()})
	c, err := hasp.New(store.Backend())
	if err != nil {
		t.Fatal(err)
	}
	b := &tab{t: t, addr: addr}
	all := b.events()
	rows(t, all)
	first := testkit.Lock(t, c, "first")
	rows(t, all, "first")
	testkit.Release(t, first)
	testkit.Lock(t, c, "second")
	rows(t, all, "second")
	go s.Drain(t.Context())
	testkit.Eventually(t, "the end of the stream", func() bool {
		select {
		case _, ok := <-all:
			return !ok
		default:
			return false
		}
	})
}

// What a person sees and does is bounded by the token, and other sites' pages do nothing.
func TestPageRights(t *testing.T) {
	known, token := tokensOf(t, [3]string{"viewer", "look", "app/"}, [3]string{"operator", "look,lock,operate", "app/"})
	store := memlock.New()
	_, addr := start(t, serve.Options{Store: store.Backend(), Tokens: known})
	c, err := hasp.New(store.Backend())
	if err != nil {
		t.Fatal(err)
	}
	app, secret := testkit.Lock(t, c, "app/deploy"), testkit.Lock(t, c, "secret")
	b := &tab{t: t, addr: addr}
	b.status(http.StatusUnauthorized, "GET", "/", "")
	b.status(http.StatusUnauthorized, "GET", "/page/events", "")
	b.head = map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	b.status(http.StatusUnauthorized, "POST", "/page/login", "token=wrong")

	cookie := b.signIn(token["viewer"])
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || strings.Contains(cookie.Value, token["viewer"]) {
		t.Errorf("the cookie is %v", cookie)
	}
	api := &tab{t: t, addr: addr, head: map[string]string{"Authorization": "bearer " + cookie.Value}}
	api.status(http.StatusUnauthorized, "GET", "/v1/queue?name=app/deploy", "") // it is of use for the page only
	rows(t, b.events(), "app/deploy")
	b.status(http.StatusOK, "GET", "/page/queue?name=app/deploy", "")
	b.status(http.StatusForbidden, "GET", "/page/queue?name=secret", "")
	b.status(http.StatusUnauthorized, "GET", "/v1/queue?name=app/deploy", "") // the API has no cookies
	b.head = map[string]string{"Hasp-Page": "1"}
	evict := func(l *hasp.Lease) string { return fmt.Sprintf(`{"name":%q,"entry":%q,"why":"x"}`, l.Name(), l.ID()) }
	b.status(http.StatusForbidden, "POST", "/page/evict", evict(app))
	b.status(http.StatusForbidden, "POST", "/page/ask", evict(app))

	b.signIn(token["operator"])
	b.status(http.StatusForbidden, "POST", "/page/evict", evict(app)) // without the header, as a form of another site
	b.head = map[string]string{"Hasp-Page": "1", "Sec-Fetch-Site": "cross-site"}
	b.status(http.StatusForbidden, "POST", "/page/evict", evict(app))
	b.head = map[string]string{"Hasp-Page": "1"}
	b.status(http.StatusBadRequest, "POST", "/page/evict", `{"name":"app/deploy","entry":"x"}`) // no reason
	b.status(http.StatusForbidden, "POST", "/page/evict", evict(secret))
	if !app.Held() || !secret.Held() {
		t.Fatal("a lock was taken away without the right to it")
	}
	b.status(http.StatusOK, "POST", "/page/evict", evict(app))
	b.status(http.StatusGone, "POST", "/page/evict", evict(app))
	testkit.Await(t, "the loss", app.Context().Done())
}

// A name of this machine's address that another site has made up (DNS rebinding) is refused.
func TestPageOtherHost(t *testing.T) {
	_, addr := start(t, serve.Options{Store: memlock.New().Backend()})
	b := &tab{t: t, addr: addr, head: map[string]string{"Host": "attacker.example"}}
	b.status(http.StatusForbidden, "GET", "/", "")
	b.status(http.StatusForbidden, "GET", "/page/events", "")
}

// A request to give a lock up reaches its holder, with the reason, and takes nothing.
func TestPageAsks(t *testing.T) {
	store := memlock.New()
	_, addr := start(t, serve.Options{Store: store.Backend()})
	c, err := hasp.New(store.Backend())
	if err != nil {
		t.Fatal(err)
	}
	b := &tab{t: t, addr: addr, head: map[string]string{"Hasp-Page": "1"}}
	var l *hasp.Lease
	ready := make(chan struct{})
	l, err = c.Semaphore("a", 3, hasp.Revocable(0, func(by hasp.Owner) {
		<-ready
		if by.Asks != "please" {
			t.Errorf("asked by %+v", by)
		}
		_ = l.Release(context.Background())
	})).Acquire(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	close(ready)
	b.status(http.StatusOK, "POST", "/page/ask", `{"name":"a","why":"please"}`)
	if q, err := c.Inspect(t.Context(), "a"); err != nil || len(q.Holders)+len(q.Waiters) != 0 {
		t.Errorf("the store has %+v, %v", q, err)
	}
}

// A request to a holder stands in a queue, and counts as one that waits.
func TestPageAskCounts(t *testing.T) {
	_, addr := start(t, serve.Options{Store: memlock.New().Backend(), Limits: serve.Limits{Sessions: 10, Locks: 10, Waiting: 1}})
	b := &tab{t: t, addr: addr, head: map[string]string{"Hasp-Page": "1"}}
	b.events() // an open page, which is one
	b.status(http.StatusTooManyRequests, "POST", "/page/ask", `{"name":"a","why":"please"}`)
}

// The page tells a server that is there from a connection that is dead by an event each five
// seconds: scripts are told of events, and not of comments.
func TestPageBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := with(t, serve.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "http://127.0.0.1:7070/page/events", nil))
		}()
		time.Sleep(31 * time.Second)
		cancel()
		<-ended
		if beats := strings.Count(w.Body.String(), "event: here\ndata: "); beats != 6 {
			t.Errorf("%d beats in 31 seconds:\n%s", beats, w.Body)
		}
	})
}
