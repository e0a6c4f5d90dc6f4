package etcdlock_test

import (
	"bufio"
	"context"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
)

// ctx ends long after a correct driver is done.
func ctx(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func parseURL(t testing.TB, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func storeURL(members []*backends.Etcd) string {
	var hosts []string
	for _, m := range members {
		hosts = append(hosts, m.Addr)
	}
	return "etcd://" + strings.Join(hosts, ",")
}

// open opens a backend by its URL, as hasp.Open would. The caller closes it.
func open(t testing.TB, url string) driver.Backend {
	t.Helper()
	b, err := driver.Lookup("etcd")(context.Background(), parseURL(t, url))
	if err != nil {
		t.Fatalf("open %s: %v", url, err)
	}
	return b
}

// backend is open with an end.
func backend(t testing.TB, url string) *etcdlock.Backend {
	t.Helper()
	b := open(t, url)
	t.Cleanup(func() { b.Close() })
	return b.(*etcdlock.Backend)
}

// locks opens a client of the root package, which the test's end closes.
func locks(t testing.TB, url string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	c, err := hasp.Open(ctx(t), url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// client is etcd's own, to look at the store past hasp.
func client(t testing.TB, addr string, opts ...grpc.DialOption) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + addr}, DialTimeout: 5 * time.Second, DialOptions: opts,
		Logger: clientv3.NewCtxClient(context.Background()).GetLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// session opens a session of the driver, which the test's end closes. told gets what it
// tells by Gone.
func session(t testing.TB, b driver.Backend, ttl time.Duration, told func(string, error)) driver.Session {
	t.Helper()
	if told == nil {
		told = func(string, error) {}
	}
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: ttl, Gone: told})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// request asks for units of a capacity, under an id of its own.
func request(name, id string, units, capacity int64) driver.Request {
	return driver.Request{Name: name, ID: id, Units: units, Capacity: capacity, Owner: `{"program":"test"}`, Since: time.Now()}
}

func whole(name, id string) driver.Request { return request(name, id, driver.Whole, driver.Whole) }

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func release(t testing.TB, l *hasp.Lease) {
	t.Helper()
	if err := l.Release(ctx(t)); err != nil {
		t.Fatalf("release: %v", err)
	}
}

// keys returns the keys that exist under a prefix.
func keys(t testing.TB, c *clientv3.Client, prefix string) []string {
	t.Helper()
	resp, err := c.Get(ctx(t), prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, kv := range resp.Kvs {
		list = append(list, string(kv.Key))
	}
	return list
}

// remove deletes what stands in a queue, as an operator would who has only etcdctl: the
// entry with this id.
func remove(t testing.TB, c *clientv3.Client, name, id string) {
	t.Helper()
	resp, err := c.Get(ctx(t), "hasp/"+name+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if strings.Contains(string(kv.Value), strconv.Quote(id)) {
			if _, err := c.Delete(ctx(t), string(kv.Key)); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no entry %q under %q", id, name)
}

// eventually waits for what only asking can tell.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain waited for: %s", what)
		}
	}
}

// etcdctl runs etcd's own client.
func etcdctl(t testing.TB, addr string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(backends.Etcdctl(t), append([]string{"--endpoints", "http://" + addr}, args...)...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	return cmd
}

// messages counts what a member has received from its clients, by method: calls, and
// messages on streams. It reads the member's own metrics.
func messages(t testing.TB, addr string) map[string]int64 {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	counts := map[string]int64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), "grpc_server_msg_received_total{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("metrics: %v", err)
		}
		for label := range strings.SplitSeq(labels, ",") {
			if method, ok := strings.CutPrefix(label, `grpc_method="`); ok {
				counts[strings.TrimSuffix(method, `"`)] += int64(v)
			}
		}
	}
	if len(counts) == 0 {
		t.Fatalf("%s has no metrics of gRPC", addr)
	}
	return counts
}

func total(counts map[string]int64) (n int64) {
	for _, v := range counts {
		n += v
	}
	return n
}
