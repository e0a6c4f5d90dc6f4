package httplock_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// BenchmarkServerMemory opens 10,000 sessions, and has each wait for one lock: what the server
// needs for each, by the memory that the system counts. Over HTTP/1.1 each waiting request has a
// connection; over HTTP/2 all share some. The floor is net/http alone, with a handler that waits
// and does nothing else.
func BenchmarkServerMemory(b *testing.B) {
	const sessions = 10_000
	for name, protocol := range map[string]func(*http.Protocols){
		"http1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"http2": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		t := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 64}
		protocol(t.Protocols)
		l := &load{c: &http.Client{Transport: t}}
		b.Run(name, func(b *testing.B) {
			redis := backends.StartRedis(b, backends.RedisOptions{})
			s := haspserve.New(b, redis.URL())
			l.b, l.addr, l.pid = b, s.Addr, s.PID()
			for b.Loop() {
				l.run(sessions)
			}
			t.CloseIdleConnections()
		})
		b.Run("floor-"+name, func(b *testing.B) {
			l.b = b
			l.startFloor()
			for b.Loop() {
				before := l.memory()
				end := l.wait(sessions, func(ctx context.Context, _ int) {
					l.ask(ctx, "PUT", "/", "", httpapi.Acquire{Name: "all", Wait: 30_000}, nil)
				})
				b.ReportMetric(float64(l.memory()-before)/sessions, "B/waiter")
				end()
			}
			t.CloseIdleConnections()
		})
	}
}

// load makes requests as plain clients do.
type load struct {
	b    testing.TB
	addr string
	pid  int
	c    *http.Client
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
	var first httpapi.Lock
	l.ask(l.b.Context(), "PUT", "/v1/locks/1", ids[0], httpapi.Acquire{Name: "all"}, &first)
	end := l.wait(sessions-1, func(ctx context.Context, i int) {
		l.ask(ctx, "PUT", "/v1/locks/1", ids[i+1], httpapi.Acquire{Name: "all", Wait: 30_000}, &httpapi.Lock{})
	})
	waits := l.memory()
	end()
	l.each(sessions, 64, func(i int) { l.ask(l.b.Context(), "DELETE", "/v1/session", ids[i], nil, nil) })
	if b, ok := l.b.(*testing.B); ok {
		b.ReportMetric(float64(opened-before)/float64(sessions), "B/session")
		b.ReportMetric(float64(waits-opened)/float64(sessions), "B/waiter")
	}
}

// wait makes n requests that wait, each again when it is over, and returns when all do. They end
// with end.
func (l *load) wait(n int, request func(ctx context.Context, i int)) (end func()) {
	ctx, cancel := context.WithCancel(l.b.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		l.each(n, n, func(i int) {
			for ctx.Err() == nil {
				request(ctx, i)
			}
		})
	})
	testkit.Eventually(l.b, "all to wait", func() bool { return l.metric("hasp_serve_waiting") == n })
	return func() {
		cancel()
		waiting.Wait()
	}
}

// floorVariable has this program serve as the floor.
const floorVariable = "HASP_TEST_FLOOR"

func (l *load) startFloor() {
	exe, err := os.Executable()
	if err != nil {
		l.b.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), floorVariable+"=1")
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		l.b.Fatal(err)
	}
	l.b.Cleanup(func() { _, _ = in.Close(), c.Wait() }) // it ends with its input
	if l.addr, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		l.b.Fatal(err)
	}
	l.addr, l.pid = strings.TrimSpace(l.addr), c.Process.Pid
}

// floor serves requests that wait until their clients go away.
func floor() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	var waiting atomic.Int64
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "\nhasp_serve_waiting %d\n", waiting.Load())
	})
	mux.HandleFunc("PUT /", func(_ http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		waiting.Add(1)
		<-q.Context().Done()
		waiting.Add(-1)
	})
	fmt.Println(l.Addr())
	go func() { _ = (&http.Server{Handler: mux, Protocols: &both}).Serve(l) }() // until the end
	go func() {
		for range time.Tick(time.Second) {
			debug.FreeOSMemory()
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
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
	q, err := http.NewRequestWithContext(ctx, method, "http://"+l.addr+path, bytes.NewReader(text))
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

// memory is the size of the server's process when it has tidied up: it does that when it is quiet.
func (l *load) memory() (n int) {
	for last := math.MaxInt; ; last = n {
		time.Sleep(4 * time.Second)
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.pid))
		if err != nil {
			l.b.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "RssAnon:")
		if n, err = strconv.Atoi(strings.Fields(rest)[0]); err != nil {
			l.b.Fatal(err)
		}
		if n *= 1024; n > last-last/50 {
			return n
		}
	}
}

func (l *load) metric(name string) int {
	r, err := l.c.Get("http://" + l.addr + "/metrics")
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
