package httplock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// BenchmarkServerMemory opens 10,000 sessions, and has each wait for one lock: what the server needs for each, by the memory that
// the system counts. Over HTTP/1.1 each waiting request has a connection; over HTTP/2 all share some.
func BenchmarkServerMemory(b *testing.B) {
	for name, protocol := range map[string]func(*http.Protocols){
		"http1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"http2": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		b.Run(name, func(b *testing.B) {
			const sessions = 10_000
			redis := backends.StartRedis(b, backends.RedisOptions{})
			s := haspserve.New(b, redis.URL())
			t := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 64}
			protocol(t.Protocols)
			l := &load{b: b, s: s, c: &http.Client{Transport: t}}
			for b.Loop() {
				l.run(sessions)
			}
			t.CloseIdleConnections()
		})
	}
}

// load makes requests as plain clients do.
type load struct {
	b testing.TB
	s *haspserve.Server
	c *http.Client
}

func (l *load) run(sessions int) {
	before := l.memory()
	ids := make([]string, sessions)
	l.each(sessions, 64, func(i int) {
		var a httpapi.Session
		l.ask(l.b.Context(), "POST", "/v1/session", "", httpapi.OpenSession{TTL: 600_000}, &a)
		ids[i] = a.Session
	})
	opened := l.memory()
	ctx, cancel := context.WithCancel(l.b.Context())
	var first httpapi.Lock
	l.ask(ctx, "PUT", "/v1/locks/1", ids[0], httpapi.Acquire{Name: "all"}, &first)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		l.each(sessions-1, sessions, func(i int) {
			l.ask(ctx, "PUT", "/v1/locks/1", ids[i+1], httpapi.Acquire{Name: "all", Wait: 30_000}, &httpapi.Lock{})
		})
	})
	testkit.Eventually(l.b, "all to wait", func() bool { return l.metric("hasp_serve_waiting") == sessions-1 })
	waits := l.memory()
	cancel()
	waiting.Wait()
	l.each(sessions, 64, func(i int) { l.ask(l.b.Context(), "DELETE", "/v1/session", ids[i], nil, nil) })
	if b, ok := l.b.(*testing.B); ok {
		b.ReportMetric(float64(opened-before)/float64(sessions), "B/session")
		b.ReportMetric(float64(waits-opened)/float64(sessions), "B/waiter")
	}
}

func (l *load) each(n, atOnce int, do func(i int)) {
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	all.Wait()
}

func (l *load) ask(ctx context.Context, method, path, session string, body, into any) {
	text, err := json.Marshal(body)
	if err != nil {
		l.b.Error(err)
		return
	}
	q, err := http.NewRequestWithContext(ctx, method, "http://"+l.s.Addr+path, bytes.NewReader(text))
	if err != nil {
		l.b.Error(err)
		return
	}
	q.Header.Set(httpapi.SessionHeader, session)
	r, err := l.c.Do(q)
	if err != nil {
		if ctx.Err() == nil {
			l.b.Error(err)
		}
		return
	}
	defer r.Body.Close()
	if r.StatusCode >= 300 {
		l.b.Errorf("%s %s: %s", method, path, r.Status)
	}
	if into != nil && json.NewDecoder(r.Body).Decode(into) != nil && ctx.Err() == nil {
		l.b.Errorf("%s %s: the answer is no JSON", method, path)
	}
}

// memory is the size of the server's process after a collection of garbage.
func (l *load) memory() int {
	time.Sleep(3 * time.Second)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.s.PID()))
	if err != nil {
		l.b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		l.b.Fatal(err)
	}
	return n * 1024
}

func (l *load) metric(name string) int {
	r, err := l.c.Get("http://" + l.s.Addr + "/metrics")
	if err != nil {
		l.b.Fatal(err)
	}
	defer r.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(r.Body); err != nil {
		l.b.Fatal(err)
	}
	_, rest, _ := strings.Cut(text.String(), "\n"+name+" ")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		l.b.Fatal(err)
	}
	return n
}
