package clients_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// front is a proxy before servers. It has affinity: all requests come to one of them, until the test
// leads them to another. And it may spoil answers: the client then hears what no server has said.
type front struct {
	mu     sync.Mutex
	to     string // address of the server
	random *rand.Rand

	spoils  atomic.Bool
	spoiled atomic.Int64
}

func newFront(t *testing.T, to string) (*front, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{to: to, random: rand.New(rand.NewPCG(1, 2))}
	s := &http.Server{Handler: f}
	go func() { _ = s.Serve(l) }() // until it is closed
	t.Cleanup(func() { _ = s.Close() })
	return f, "http://" + l.Addr().String()
}

// draw is a random number below n.
func (f *front) draw(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(n)
}

func (f *front) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return // the client has gone
	}
	spoils := f.spoils.Load() && f.draw(3) == 0
	if spoils && f.draw(3) == 0 {
		f.spoil(w, nil) // the request does not arrive
		return
	}
	answer, err := f.pass(q, body)
	if err != nil {
		http.Error(w, "no server", http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		panic(http.ErrAbortHandler) // the server has ended in the middle
	case spoils:
		f.spoil(w, said)
		return
	}
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(said)
}

// pass hands a request to the server.
func (f *front) pass(q *http.Request, body []byte) (*http.Response, error) {
	out := q.Clone(q.Context())
	f.mu.Lock()
	out.RequestURI, out.URL.Scheme, out.URL.Host, out.Host = "", "http", f.to, ""
	f.mu.Unlock()
	out.Body = io.NopCloser(bytes.NewReader(body))
	return http.DefaultTransport.RoundTrip(out)
}

func (f *front) lead(to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = to
}

// spoil answers something else than hasp serve: bytes of all kinds, or what it has said with one
// value of another type.
func (f *front) spoil(w http.ResponseWriter, said []byte) {
	f.spoiled.Add(1)
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer c.Close()
	odd := []string{
		"", "null", "{}", "[]", "[[[[", "0", "true", `"held"`, "<html>", "\xff\x00", strings.Repeat("[", 20_000), `{"state":"held"}`, `{"valid_ms":-1}`, `{"version":"1"}`,
	}
	body := odd[f.draw(len(odd))]
	if len(said) > 0 && f.draw(2) == 0 {
		body = f.mutated(said)
	}
	length := len(body)
	switch f.draw(8) {
	case 0: // the connection is closed
		return
	case 1:
		_, _ = c.Write([]byte("\x15\x03\x01 no HTTP\r\n\r\n"))
		return
	case 2:
		fmt.Fprintf(c, "HTTP/1.1 302 Found\r\nLocation: http://%s/\r\nContent-Length: 0\r\n\r\n", c.LocalAddr())
		return
	case 3:
		fmt.Fprintf(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s", length, body)
		return
	case 4: // cut off
		length += 10
	case 5:
		fmt.Fprintf(c, "HTTP/1.1 503 x\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s", length, body)
		return
	}
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", length, body)
}

// mutated is an answer in which a value has another type.
func (f *front) mutated(said []byte) string {
	var v map[string]any
	if json.Unmarshal(said, &v) != nil || len(v) == 0 {
		return "{"
	}
	// What clients go by; of the rest they read nothing.
	known := []string{"session", "valid_ms", "can", "late", "lost", "changed", "version", "state", "token", "entry"}
	for range 20 {
		if key := known[f.draw(len(known))]; v[key] != nil {
			others := []any{nil, -1.5, "", map[string]any{}, []any{1}, []any{map[string]any{}}, true}
			v[key] = others[f.draw(len(others))]
			if key == "can" && fmt.Sprint(v[key]) != "<nil>" {
				v[key] = nil // a list of other abilities would be an answer
			}
			break
		}
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
