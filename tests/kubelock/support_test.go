package kubelock_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

// cluster is the API server, as its administrator sees it.
type cluster struct{ *backends.Kube }

var (
	namespaces sync.Map // those that were made
)

func shared(t testing.TB) cluster {
	t.Helper()
	asked(t)
	return cluster{backends.SharedKube(t)}
}

// asked skips what needs an API server, unless that was asked for.
func asked(t testing.TB) {
	t.Helper()
	if os.Getenv("HASP_KUBE") != "1" {
		t.Skip("builds a Kubernetes API server first: make test-kube runs it")
	}
}

func (c cluster) config(token string) *rest.Config { return c.through(c.Addr, token) }

// through is the configuration of a client that reaches the server by another address.
func (c cluster) through(addr, token string) *rest.Config {
	return &rest.Config{Host: "https://" + addr, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: c.CA, ServerName: "localhost"}}
}

// client is hasp's, with the shortest TTL; change may alter the configuration of its connection.
func (c cluster) client(t testing.TB, namespace string, change ...func(*rest.Config)) *hasp.Client {
	t.Helper()
	config := c.config(backends.KubeAdmin)
	for _, f := range change {
		f(config)
	}
	b, err := kubelock.New(config, &kubelock.Options{Namespace: c.namespace(t, namespace)})
	if err != nil {
		t.Fatal(err)
	}
	return testkit.ClientOn(t, b, hasp.WithTTL(ttl))
}

const ttl = kubelock.MinTTL

// object is an object of Kubernetes, as JSON.
type object = map[string]any

func leases(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}

// create makes a Lease as another program does.
func (c cluster) create(t testing.TB, namespace, name string, spec object) {
	t.Helper()
	c.ask(t, http.MethodPost, leases(c.namespace(t, namespace)), object{"metadata": object{"name": name}, "spec": spec})
}

// lease reads one.
func (c cluster) lease(t testing.TB, namespace, name string) *coordination.Lease {
	t.Helper()
	text, err := json.Marshal(c.ask(t, http.MethodGet, leases(namespace)+"/"+name, nil))
	if err != nil {
		t.Fatal(err)
	}
	l := &coordination.Lease{}
	if err := json.Unmarshal(text, l); err != nil {
		t.Fatal(err)
	}
	return l
}

// stamp is a time as a Lease has it.
func stamp(at time.Time) string { return at.UTC().Format(meta.RFC3339Micro) }

// roundTripper is a function between a client and its connection.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// between puts f before each request.
func between(f func(*http.Request)) func(*rest.Config) {
	return func(c *rest.Config) {
		c.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				f(r)
				return next.RoundTrip(r)
			})
		})
	}
}

// ask sends a request of kubectl's.
func (c cluster) ask(t testing.TB, method, path string, body any) object {
	t.Helper()
	status, answer := c.try(t, method, path, body)
	if status >= 300 {
		t.Fatalf("%s %s: %d %v", method, path, status, answer["message"])
	}
	return answer
}

func (c cluster) try(t testing.TB, method, path string, body any) (int, object) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	kind := "application/json"
	if method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	return c.send(t, method, path, kind, text)
}

func (c cluster) send(t testing.TB, method, path, kind string, text []byte) (int, object) {
	t.Helper()
	r, err := http.NewRequest(method, "https://"+c.Addr+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+backends.KubeAdmin)
	r.Header.Set("Content-Type", kind)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: c.TLS, DisableKeepAlives: true}}
	reply, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	all, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer := object{}
	if err := json.Unmarshal(all, &answer); err != nil {
		t.Fatalf("%s %s: %s: %q", method, path, reply.Status, all)
	}
	return reply.StatusCode, answer
}

// namespace makes one.
func (c cluster) namespace(t testing.TB, name string) string {
	t.Helper()
	if _, made := namespaces.LoadOrStore(c.Addr+name, true); !made && name != "kube-system" {
		c.ask(t, http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": name}})
	}
	return name
}

// url is that of a namespace, by a kubeconfig.
func (c cluster) url(t testing.TB, namespace string) string {
	t.Helper()
	file := kubeconfig(t, c.Addr, c.CA, backends.KubeAdmin)
	return "kube://" + c.namespace(t, namespace) + "?kubeconfig=" + file
}

func (c cluster) open(t testing.TB, namespace string) driver.Backend {
	t.Helper()
	b, err := kubelock.New(c.config(backends.KubeAdmin), &kubelock.Options{Namespace: c.namespace(t, namespace)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// bodyOf reads a request's body, and leaves it to be sent.
func bodyOf(r *http.Request) string {
	text, _ := io.ReadAll(r.Body)
	setBody(r, string(text))
	return string(text)
}

func setBody(r *http.Request, text string) {
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

// occupy begins a request of a user's that is not ended before free is called. A priority level
// without any concurrency lets one request pass at a time; all others get 429 then.
//
// It returns when the level is full: a request that comes before the server knows the level, or the
// schema that leads to it, takes a place elsewhere, and is sent anew.
func (c cluster) occupy(t testing.TB, token, namespace string) (free func()) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: c.TLS, DisableKeepAlives: true}}
	full := func() bool {
		r, err := http.NewRequest(http.MethodGet, "https://"+c.Addr+leases(namespace), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		reply, err := client.Do(r)
		if err != nil {
			return false
		}
		reply.Body.Close()
		return reply.StatusCode == http.StatusTooManyRequests
	}
	for range 30 {
		free = c.place(t, token, namespace)
		for range 10 {
			if full() {
				return free
			}
			time.Sleep(100 * time.Millisecond)
		}
		free()
	}
	t.Fatal("the priority level is never full")
	return nil
}

// place sends a request that takes a place of its priority level until it is freed.
func (c cluster) place(t testing.TB, token, namespace string) (free func()) {
	t.Helper()
	body, end := io.Pipe()
	r, err := http.NewRequest(http.MethodPost, "https://"+c.Addr+leases(namespace), body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	done := make(chan struct{})
	go func() {
		defer close(done)
		client := http.Client{Transport: &http.Transport{TLSClientConfig: c.TLS, DisableKeepAlives: true}}
		if reply, err := client.Do(r); err == nil { // it is refused, as no Lease, or because its turn has not come
			reply.Body.Close()
		}
	}()
	return func() {
		end.CloseWithError(io.ErrUnexpectedEOF)
		<-done
	}
}
