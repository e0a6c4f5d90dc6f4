package httpfence_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/httpfence"
	"github.com/hasplock/hasp/internal/testkit"
)

// A holder is stopped in the middle of an upload. The next one, with a greater token, is served
// meanwhile, and what the first sends later is refused. A body that is too long is refused as well.
func TestStoppedUpload(t *testing.T) {
	var fences fencing.Fences
	var written []string
	h := httpfence.Handler(&fences, func(*http.Request) string { return "a" }, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("the body: %v", err)
		}
		written = append(written, string(body)) // one at a time
	}))
	begun := make(chan struct{}, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(httpfence.TokenHeader) == "1" {
			begun <- struct{}{}
		}
		h.ServeHTTP(w, r)
	}))
	defer s.Close()
	stopped, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	fmt.Fprintf(stopped, "PUT / HTTP/1.1\r\nHost: x\r\nHasp-Lock: a\r\nHasp-Token: 1\r\nContent-Length: 10\r\n\r\nstale")
	testkit.Await(t, "the first upload", begun)
	put := func(token, body string) int {
		q, err := http.NewRequestWithContext(testkit.Context(t), http.MethodPut, s.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set(httpfence.LockHeader, "a")
		q.Header.Set(httpfence.TokenHeader, token)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatalf("the next holder is not served: %v", err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	if status := put("2", "fresh"); status != http.StatusOK {
		t.Fatalf("the next holder: %d", status)
	}
	fmt.Fprint(stopped, "stale")
	r, err := http.ReadResponse(bufio.NewReader(stopped), nil)
	if err != nil || r.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("the stopped holder's upload: %+v, %v", r, err)
	}
	if status := put("3", strings.Repeat("x", httpfence.MaxBody+1)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body too long: %d", status)
	}
	if len(written) != 1 || written[0] != "fresh" {
		t.Errorf("written: %q", written)
	}
}
