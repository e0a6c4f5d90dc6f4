package serve_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// front is a proxy before servers, as a load balancer is: it leads to one of them at a time.
type front struct {
	to    atomic.Pointer[url.URL]
	proxy *httptest.Server

	mu     sync.Mutex
	refuse []func(q *http.Request) bool // the answer to the next request that the first is true of is lost
	route  func(q *http.Request) (addr string, wait <-chan struct{})
}

func newFront(t *testing.T, addr string) *front {
	f := &front{}
	f.lead(addr)
	f.proxy = httptest.NewServer(f)
	t.Cleanup(f.proxy.Close)
	return f
}

func (f *front) lead(addr string) { f.to.Store(&url.URL{Scheme: "http", Host: addr}) }

func (f *front) addr() string { return strings.TrimPrefix(f.proxy.URL, "http://") }

// lose loses the answers to the next such requests, one each, in this order.
func (f *front) lose(which ...func(q *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = which
}

// split sends each request where route says, and holds its answer back until wait is closed. An
// addr of "" and a wait of nil change nothing.
func (f *front) split(route func(q *http.Request) (addr string, wait <-chan struct{})) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.route = route
}

func (f *front) toLose() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.refuse)
}

func (f *front) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	f.mu.Lock()
	lost := len(f.refuse) > 0 && f.refuse[0](q)
	if lost {
		f.refuse = f.refuse[1:]
	}
	to := f.to.Load()
	var wait <-chan struct{}
	if f.route != nil {
		var addr string
		if addr, wait = f.route(q); addr != "" {
			to = &url.URL{Scheme: "http", Host: addr}
		}
	}
	f.mu.Unlock()
	p := httputil.NewSingleHostReverseProxy(to)
	p.ModifyResponse = func(*http.Response) error {
		if wait != nil {
			<-wait
		}
		return nil
	}
	p.FlushInterval = -1
	p.ErrorLog = quiet
	if lost {
		p.ServeHTTP(httptest.NewRecorder(), q)
		panic(http.ErrAbortHandler) // cuts the connection
	}
	p.ServeHTTP(w, q)
}

// pair is two servers of one store, with a client that reaches them by a front.
type pair struct {
	store *memlock.Store
	first *serve.Server
	addrs [2]string
	front *front
	gone  chan string
	b     driver.Backend
	s     driver.Session
}

func newPair(t *testing.T, tokens *access.Tokens, token string) *pair {
	return newPairOf(t, func(b driver.Backend) driver.Backend { return b }, tokens, token)
}

// newPairOf has the servers use what is made of the store.
func newPairOf(t *testing.T, store func(driver.Backend) driver.Backend, tokens *access.Tokens, token string) *pair {
	p := &pair{store: memlock.New(), gone: make(chan string, 100)}
	p.first, p.addrs[0] = start(t, serve.Options{Store: store(p.store.Backend()), Tokens: tokens})
	_, p.addrs[1] = start(t, serve.Options{Store: store(p.store.Backend()), Tokens: tokens})
	p.front = newFront(t, p.addrs[0])
	p.b = open(t, p.front.addr(), token)
	t.Cleanup(func() { _ = p.b.Close() })
	p.s = testkit.Session(t, p.b, time.Minute, func(id string, err error) { p.gone <- id })
	return p
}

func (p *pair) lock(t *testing.T, name string) (driver.Ticket, driver.Verdict) {
	t.Helper()
	ticket := p.s.Ticket(testkit.Request(name))
	v, err := ticket.Enqueue(t.Context())
	if err != nil || !v.Held {
		t.Fatalf("lock: %+v, %v", v, err)
	}
	return ticket, v
}

// keepAlive repeats a keep-alive until it succeeds. The session must not end.
func (p *pair) keepAlive(t *testing.T) {
	t.Helper()
	testkit.Until(t, "a keep-alive", func() error {
		_, err := p.s.KeepAlive(t.Context())
		if errors.Is(err, driver.ErrGone) {
			t.Fatal(err)
		}
		return err
	})
}

// entries are those of the store itself.
func (p *pair) entries(t *testing.T, name string) []driver.Entry {
	t.Helper()
	all, err := p.store.Backend().List(t.Context(), name, 0)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (p *pair) wantGone(t *testing.T, ids ...string) {
	t.Helper()
	var got []string
	for len(p.gone) > 0 {
		got = append(got, <-p.gone)
	}
	if !slices.Equal(got, ids) {
		t.Errorf("told as gone: %q, want %q", got, ids)
	}
}

// A session's requests come to another server. What is held passes to it, with its place and its
// token; what waits is told as gone.
func TestSessionMoves(t *testing.T) {
	known, token := tokensOf(t, [3]string{"locker", "look,lock", "*"})
	for what, with := range map[string]struct {
		tokens *access.Tokens
		token  string
	}{"everybody may do everything": {}, "a token without the right to operate": {known, token["locker"]}} {
		t.Run(what, func(t *testing.T) {
			p := newPair(t, with.tokens, with.token)
			beside := testkit.ClientOn(t, p.store.Backend())
			other := testkit.Lock(t, beside, "theirs")
			a, held := p.lock(t, "a")
			b, _ := p.lock(t, "b")
			waits := testkit.RequestAs("theirs", "waits")
			if v, err := p.s.Ticket(waits).Enqueue(t.Context()); err != nil || v.Held {
				t.Fatalf("%+v, %v", v, err)
			}
			next := testkit.Queued(t, beside, "a")
			before := p.entries(t, "a")[0]

			p.front.lead(p.addrs[1])
			if granted, err := p.s.KeepAlive(t.Context()); err != nil || granted != time.Minute {
				t.Fatalf("keep-alive at another server: %s, %v", granted, err)
			}
			after := p.entries(t, "a")
			if len(after) != 2 || after[0].Seq != before.Seq || after[0].Session == before.Session {
				t.Errorf("the store has %+v, and had %+v", after, before)
			}
			p.wantGone(t, "waits")
			if e := p.entries(t, "theirs"); len(e) != 1 {
				t.Errorf("a place that the client has given up is still in the queue: %+v", e)
			}
			if v, err := a.Enqueue(t.Context()); err != nil || !v.Held || v.Token != held.Token {
				t.Errorf("asked again: %+v, %v", v, err)
			}
			if seen, err := p.b.List(t.Context(), "a", 0); err != nil || len(seen) != 2 || seen[0].ID == after[0].ID {
				t.Errorf("the client sees %+v, %v: not its own name of the entry", seen, err)
			}
			for _, ticket := range []driver.Ticket{a, b} {
				if err := ticket.Leave(t.Context()); err != nil {
					t.Errorf("release: %v", err)
				}
			}
			if l := testkit.Granted(t, next); l.Token() <= held.Token {
				t.Errorf("token %d after %d", l.Token(), held.Token)
			}
			if n := len(p.entries(t, "b")); n != 0 {
				t.Errorf("%d entries are left", n)
			}
			p.lock(t, "c") // numbers go on
			p.wantGone(t)
			testkit.Release(t, other)
		})
	}
}

// The answers to the steps of a move are lost, each once: the keep-alive fails, is repeated, and
// nothing is adopted twice or lost.
func TestMoveWithLostAnswers(t *testing.T) {
	p := newPair(t, nil, "")
	var tickets []driver.Ticket
	tokens := map[string]uint64{}
	for _, name := range []string{"a", "b", "c"} {
		ticket, v := p.lock(t, name)
		tickets, tokens[name] = append(tickets, ticket), v.Token
	}
	p.front.lead(p.addrs[1])
	to := func(path string) func(q *http.Request) bool {
		return func(q *http.Request) bool { return q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, path) }
	}
	p.front.lose(to("/v1/session"), to("/adopt"), to("/adopt"), to("/keepalive"))
	p.keepAlive(t)
	p.wantGone(t)
	if n := p.front.toLose(); n > 0 {
		t.Errorf("%d answers were not lost: this has shown little", n)
	}
	for i, name := range []string{"a", "b", "c"} {
		if e := p.entries(t, name); len(e) != 1 || e[0].Seq != tokens[name] {
			t.Errorf("%s: the store has %+v", name, e)
		}
		if err := tickets[i].Leave(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
	}
}

// The server to which a session moves ends as well, in the middle of it.
func TestMoveOn(t *testing.T) {
	p := newPair(t, nil, "")
	_, third := start(t, serve.Options{Store: p.store.Backend()})
	a, _ := p.lock(t, "a")
	b, _ := p.lock(t, "b")
	p.front.lead(p.addrs[1])
	adopted := 0
	p.front.lose(func(q *http.Request) bool {
		adopted++
		return strings.HasSuffix(q.URL.Path, "/adopt") && adopted > 2
	})
	if _, err := p.s.KeepAlive(t.Context()); err == nil {
		t.Fatal("nothing was lost: this shows nothing")
	}
	p.front.lead(third)
	p.keepAlive(t)
	told := len(p.gone)
	kept := 0
	for _, ticket := range []driver.Ticket{a, b} {
		if v, err := ticket.Enqueue(t.Context()); err == nil && v.Held {
			kept++
			if err := ticket.Leave(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
		} else if !errors.Is(err, driver.ErrGone) {
			t.Errorf("%+v, %v", v, err)
		}
	}
	// The one whose adoption was not answered may be in either of two servers that are gone.
	if kept+told != 2 || kept == 0 {
		t.Errorf("%d are held, and the loss of %d was told", kept, told)
	}
}

// The first server tells its client late, between two moves, that its session has the locks no
// more. What the second has adopted is not lost by that. (Both were, once in eighty moves on a busy
// machine.)
func TestAdoptedIsNotLost(t *testing.T) {
	p := newPair(t, nil, "")
	_, third := start(t, serve.Options{Store: p.store.Backend()})
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	answerNow := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(answerNow)
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		if !strings.HasSuffix(q.URL.Path, "/events") {
			return "", nil
		}
		asked <- struct{}{}
		return p.addrs[0], answer
	})
	a, _ := p.lock(t, "a")
	b, _ := p.lock(t, "b")
	testkit.Await(t, "a request for losses", asked)
	p.front.lose(func(q *http.Request) bool { return strings.HasSuffix(q.URL.Path, "/adopt") })
	for _, addr := range []string{p.addrs[1], third} { // the one adopts one of two, the other finds that it has ended
		p.front.lead(addr)
		if _, err := p.s.KeepAlive(t.Context()); err == nil || errors.Is(err, driver.ErrGone) {
			t.Fatalf("keep-alive in the middle of a move: %v", err)
		}
	}
	answerNow()
	for range 2 { // losses are told as they come: two answers, or one
		testkit.Await(t, "the next request for losses", asked)
	}
	p.keepAlive(t)
	kept := 0
	for _, ticket := range []driver.Ticket{a, b} {
		if v, err := ticket.Enqueue(t.Context()); err == nil && v.Held {
			kept++
		}
	}
	if told := len(p.gone); kept != 1 || told != 1 {
		t.Errorf("%d are held, and the loss of %d was told", kept, told)
	}
}

// What the store has freed meanwhile is not adopted: its loss is told, and the rest lives.
func TestMoveWithoutTheEvicted(t *testing.T) {
	p := newPair(t, nil, "")
	a := testkit.RequestAs("a", "evicted")
	if v, err := p.s.Ticket(a).Enqueue(t.Context()); err != nil || !v.Held {
		t.Fatal(v, err)
	}
	p.lock(t, "b")
	p.front.lead(p.addrs[1])
	if err := p.store.Backend().(driver.Evicter).Evict(t.Context(), "a", "evicted", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := p.s.KeepAlive(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.wantGone(t, "evicted")
	if n := len(p.entries(t, "b")); n != 1 {
		t.Errorf("%d entries of b", n)
	}
}

// A server that is about to end tells its clients, which move to another at once. It then has
// nothing to wait for.
func TestDrainMovesSessions(t *testing.T) {
	p := newPair(t, nil, "")
	c := testkit.ClientOn(t, p.b, hasp.WithTTL(time.Minute))
	l := testkit.Lock(t, c, "a")
	before := p.entries(t, "a")[0]
	p.front.lead(p.addrs[1])
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	p.first.Drain(ctx)
	if ctx.Err() != nil {
		t.Fatal("the server still has locks")
	}
	after := p.entries(t, "a")
	if len(after) != 1 || after[0].Seq != before.Seq || after[0].Session == before.Session || !l.Held() {
		t.Errorf("the store has %+v, and had %+v; held: %t", after, before, l.Held())
	}
	testkit.Release(t, l)
}

// A session moves from a server that can still keep it alive, and gets stuck: one lock is adopted,
// and the answer about the other is lost again and again. Until all are in one session, no
// keep-alive may succeed: that of the old session would lengthen the trust in what has left it.
func TestNoKeepAliveBetweenTwoSessions(t *testing.T) {
	p := newPair(t, nil, "")
	p.lock(t, "a")
	p.lock(t, "b")
	old := p.entries(t, "a")[0].Session
	adoptions, stuck := 0, true // guarded by the front's mutex
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		switch {
		case strings.HasSuffix(q.URL.Path, "/adopt"):
			adoptions++
			if stuck && strings.Contains(q.URL.Path, "/2/") {
				return "127.0.0.1:1", nil // where no server is
			}
			return p.addrs[1], nil
		case q.URL.Path == "/v1/session" && q.Method == http.MethodPost:
			return p.addrs[1], nil
		}
		return "", nil
	})
	drained := make(chan struct{})
	go func() {
		p.first.Drain(t.Context())
		close(drained)
	}()
	testkit.Eventually(t, "one of the two to be adopted", func() bool {
		p.front.mu.Lock()
		defer p.front.mu.Unlock()
		return adoptions > 1 && (p.entries(t, "a")[0].Session == old) != (p.entries(t, "b")[0].Session == old)
	})
	if granted, err := p.s.KeepAlive(t.Context()); err == nil {
		t.Errorf("kept alive for %s, and one of the two locks is in another session", granted)
	}
	p.front.mu.Lock()
	stuck = false
	p.front.mu.Unlock()
	p.front.lead(p.addrs[1])
	p.keepAlive(t)
	for _, name := range []string{"a", "b"} {
		if e := p.entries(t, name); len(e) != 1 || e[0].Session == old {
			t.Errorf("the store has %+v", e)
		}
	}
	p.wantGone(t)
	testkit.Await(t, "the end of the drain", drained)
}

// A proxy that leads each request to another server keeps no session. The client does not wear the
// servers out with it.
func TestRoundRobin(t *testing.T) {
	p := newPair(t, nil, "")
	p.lock(t, "a")
	var requests, sessions atomic.Int64
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		if q.URL.Path == "/v1/session" && q.Method == http.MethodPost {
			sessions.Add(1)
		}
		return p.addrs[requests.Add(1)%2], nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		_, _ = p.s.KeepAlive(ctx)
	}
	if n := sessions.Load(); n > 10 {
		t.Errorf("%d sessions in 2 seconds", n)
	}
	testkit.Eventually(t, "a session", func() bool { // a busy machine needs longer
		_, _ = p.s.KeepAlive(t.Context())
		return sessions.Load() > 0
	})
}

// The first request for a lock is done by a server, and its answer does not come through: a proxy
// repeats it at another server, for which the session is none. The client does not use the entry's
// id again, which may be an entry of the first one, and does not wait for that either.
func TestRepeatedAtAnotherServer(t *testing.T) {
	p := newPair(t, nil, "")
	done := false // guarded by the front's mutex
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		if q.Method == http.MethodPut && !done {
			done = true
			again := q.Clone(q.Context())
			body, err := io.ReadAll(q.Body)
			if err != nil {
				t.Error(err)
			}
			again.Body, q.Body = io.NopCloser(bytes.NewReader(body)), io.NopCloser(bytes.NewReader(body))
			to := httputil.NewSingleHostReverseProxy(p.front.to.Load())
			answer := httptest.NewRecorder()
			if to.ServeHTTP(answer, again); answer.Code != http.StatusOK {
				t.Errorf("the first server: %d", answer.Code)
			}
			p.front.lead(p.addrs[1])
			return p.addrs[1], nil
		}
		return "", nil
	})
	r := testkit.RequestAs("a", "chosen")
	ticket := p.s.Ticket(r)
	if v, err := ticket.Enqueue(t.Context()); err != nil || !v.Held {
		t.Errorf("%+v, %v: behind its own entry", v, err)
	}
	if e := p.entries(t, "a"); len(e) != 1 || e[0].ID == r.ID {
		t.Errorf("the store has %+v", e)
	}
	if seen, err := p.b.List(t.Context(), "a", 0); err != nil || len(seen) != 1 || seen[0].ID != r.ID {
		t.Errorf("the client sees %+v, %v: not its own name of the entry", seen, err)
	}
	p.keepAlive(t)
	p.wantGone(t)
	if err := ticket.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if e := p.entries(t, "a"); len(e) != 0 {
		t.Errorf("left behind: %+v", e)
	}
}

// Losses are numbered in each session. One in the session that this one has moved to is told,
// although the old one had as many before.
func TestLossAfterAMove(t *testing.T) {
	p := newPair(t, nil, "")
	evict := func(name string) {
		t.Helper()
		id := p.entries(t, name)[0].ID
		if err := p.store.Backend().(driver.Evicter).Evict(t.Context(), name, id, ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		p.lock(t, name)
	}
	kept, _ := p.lock(t, "c")
	evict("a")
	testkit.Await(t, "the first loss", p.gone)
	evict("b")
	testkit.Await(t, "the second", p.gone)
	p.front.lead(p.addrs[1])
	if _, err := p.s.KeepAlive(t.Context()); err != nil {
		t.Fatal(err)
	}
	evict("c") // before the request for losses has left the first server
	go p.first.Drain(t.Context())
	testkit.Await(t, "the loss after the move", p.gone)
	if _, err := kept.Enqueue(t.Context()); !errors.Is(err, driver.ErrGone) {
		t.Errorf("asked again: %v", err)
	}
}

// The old session's answer about a held lock comes when the lock has moved. It does not count: the
// lock is held, and can be released.
func TestLateAnswerOfTheOldSession(t *testing.T) {
	p := newPair(t, nil, "")
	a, held := p.lock(t, "a")
	late, asked := make(chan struct{}), make(chan struct{}, 10)
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		if q.Method == http.MethodPut && p.front.to.Load().Host == p.addrs[0] {
			asked <- struct{}{}
			return "", late
		}
		return "", nil
	})
	answer := make(chan error, 1)
	go func() {
		v, err := a.Enqueue(t.Context())
		if err == nil && v.Token != held.Token {
			err = fmt.Errorf("token %d, and had %d", v.Token, held.Token)
		}
		answer <- err
	}()
	testkit.Await(t, "the request", asked)
	p.front.lead(p.addrs[1])
	if _, err := p.s.KeepAlive(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(late)
	if err := testkit.Await(t, "the answer", answer); err != nil {
		t.Errorf("asked again: %v", err)
	}
	p.wantGone(t)
	if err := a.Leave(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	if e := p.entries(t, "a"); len(e) != 0 {
		t.Errorf("left behind: %+v", e)
	}
}

// A client adopts no entry of another: neither by its id, which all can see, nor with a session
// that is not the one the entry is in.
func TestForeignIsNotAdopted(t *testing.T) {
	known, token := tokensOf(t, [3]string{"owner", "look,lock", "*"}, [3]string{"thief", "look,lock", "*"})
	server, addr := start(t, serve.Options{Store: memlock.New().Backend(), Tokens: known})
	l := testkit.Lock(t, testkit.ClientOn(t, open(t, addr, token["owner"])), "a")
	thief := &api{t: t, s: server, token: token["thief"]}
	session := thief.open(time.Minute).Session
	var seen httpapi.Queue
	thief.want(http.StatusOK, "GET", "/v1/queue?name=a", nil, &seen)
	steal := httpapi.AdoptLock{Acquire: httpapi.Acquire{Name: "a"}, From: seen.Entries[0].ID, Seq: seen.Entries[0].Seq}
	thief.refused(httpapi.Forbidden, "POST", "/v1/locks/1/adopt", steal)
	for number := range uint64(5) {
		steal.FromSession, steal.FromLock = session, number
		thief.refused(httpapi.Forbidden, "POST", "/v1/locks/1/adopt", steal)
		evict := httpapi.EvictEntry{Name: "a", Entry: steal.From, FromSession: session, FromLock: number}
		thief.refused(httpapi.Forbidden, "POST", "/v1/evict", evict)
	}
	if !l.Held() {
		t.Error("the owner has lost it")
	}
}

// quiet takes what a proxy says of requests that are given up.
var quiet = log.New(io.Discard, "", 0)
