package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// patience is how long a test waits for what must come. Only a broken driver ever takes
// that long; a loaded machine does not.
const patience = 2 * time.Minute

// calm is a TTL for tests that are not about expiry: a machine that stalls for a
// while must not fail them.
const calm = 10 * time.Minute

// ctx ends long after a correct driver is done.
func ctx(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func storeURL(members []*backends.Etcd) string {
	var hosts []string
	for _, m := range members {
		hosts = append(hosts, m.Addr)
	}
	return "etcd://" + strings.Join(hosts, ",")
}

// backend is testkit.Open with an end.
func backend(t testing.TB, url string) *etcdlock.Backend {
	t.Helper()
	b := testkit.Open(t, url)
	t.Cleanup(func() { b.Close() })
	return b.(*etcdlock.Backend)
}

// onClient is a client of the root package on one of etcd's that hasp has not made.
func onClient(t testing.TB, etcd *clientv3.Client, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	b, err := etcdlock.New(etcd, nil)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.ClientOn(t, b, opts...)
}

// tally is an observer that counts events.
type tally struct {
	mu    sync.Mutex
	count map[hasp.EventKind]int
}

func (y *tally) Observe(ev hasp.Event) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.count == nil {
		y.count = map[hasp.EventKind]int{}
	}
	if ev.Kind != hasp.EventRenewed || ev.Err == nil {
		y.count[ev.Kind]++
	}
}

func (y *tally) of(kind hasp.EventKind) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.count[kind]
}

// renewed waits until n renewals more have succeeded.
func (y *tally) renewed(t testing.TB, n int) {
	t.Helper()
	n += y.of(hasp.EventRenewed)
	testkit.Eventually(t, "renewals", func() bool { return y.of(hasp.EventRenewed) >= n })
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

// request asks for units of a capacity, under its own id.
func request(name, id string, units, capacity int64) driver.Request {
	return driver.Request{Name: name, ID: id, Units: units, Capacity: capacity, Owner: `{"program":"test"}`, Since: time.Now()}
}

func whole(name, id string) driver.Request { return request(name, id, driver.Whole, driver.Whole) }

// waitsFor has a ticket enter behind another one, and returns its turn.
func waitsFor(t *testing.T, k driver.Ticket) <-chan error {
	t.Helper()
	if v := testkit.Entered(t, k); v.Held {
		t.Fatalf("enqueue: %+v", v)
	}
	return turnOf(t, k)
}

// turnOf has a ticket wait until it holds.
func turnOf(t *testing.T, k driver.Ticket) <-chan error {
	done := make(chan error, 1)
	go func() {
		v, err := k.Wait(ctx(t))
		for err == nil && !v.Held {
			v, err = k.Wait(ctx(t))
		}
		done <- err
	}()
	return done
}

// left leaves, and asks again while the store does not answer.
func left(t *testing.T, k driver.Ticket) {
	t.Helper()
	all := ctx(t)
	err := k.Leave(all)
	for err != nil && !testkit.Definite(err) && all.Err() == nil {
		if err = k.Leave(all); errors.Is(err, driver.ErrGone) {
			return // by the request before
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func turn(t *testing.T, what string, done <-chan error) {
	t.Helper()
	if err := testkit.Await(t, what, done); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// watchCount counts what a client's watch streams send and are told.
type watchCount struct{ established, ended atomic.Int64 }

func (c *watchCount) intercept(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, d, cc, method, opts...)
	return countedStream{s, c}, err
}

type countedStream struct {
	grpc.ClientStream
	count *watchCount
}

func (s countedStream) SendMsg(m any) error {
	if r, ok := m.(*pb.WatchRequest); ok && r.GetCancelRequest() != nil {
		s.count.ended.Add(1)
	}
	return s.ClientStream.SendMsg(m)
}

func (s countedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*pb.WatchResponse); ok && err == nil && r.Created && !r.Canceled {
		s.count.established.Add(1)
	}
	return err
}

// countsWatches is a client of etcd's whose watches are counted.
func countsWatches(t *testing.T, e *backends.Etcd, opts ...grpc.DialOption) (*etcdlock.Backend, *watchCount) {
	c := &watchCount{}
	dialed := client(t, e.Addr, append(opts, grpc.WithChainStreamInterceptor(c.intercept))...)
	return testkit.Must[*etcdlock.Backend](t)(etcdlock.New(dialed, nil)), c
}

// byMany calls fn for 0 to n-1, on 64 goroutines.
func byMany(t testing.TB, n int, fn func(i int) error) {
	var wg sync.WaitGroup
	for worker := range 64 {
		wg.Go(func() {
			for i := worker; i < n; i += 64 {
				if err := fn(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// keys returns the keys that exist under a prefix, oldest first.
func keys(t testing.TB, c *clientv3.Client, prefix string) []string {
	t.Helper()
	resp, err := c.Get(ctx(t), prefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, kv := range resp.Kvs {
		list = append(list, string(kv.Key))
	}
	return list
}

// remove deletes the entries of a queue, as an operator would who has only etcdctl: the
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

// waitFor waits for what only asking can tell, and returns whether it came.
func waitFor(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// onBoth runs a test on a current etcd and on the oldest that is promised to work.
func onBoth(t *testing.T, run func(t *testing.T, o backends.EtcdOptions)) {
	for version, old := range map[string]bool{"new": false, "old": true} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			run(t, backends.EtcdOptions{Old: old})
		})
	}
}

// etcdctl runs etcd's own client.
func etcdctl(t testing.TB, addr string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(backends.Etcdctl(t), append([]string{"--endpoints", "http://" + addr}, args...)...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	return cmd
}

// metrics reads a member's own, by name and labels as they are written there.
func metrics(t testing.TB, addr string) map[string]float64 {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all := map[string]float64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		// NAME{LABELS} VALUE: the labels may have spaces, the value has none.
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if all[line[:i]], err = strconv.ParseFloat(line[i+1:], 64); err != nil {
			t.Fatalf("metrics: %v", err)
		}
	}
	return all
}

// messages counts what a member has received from its clients, by method: calls, and
// messages on streams.
func messages(t testing.TB, addr string) map[string]int64 {
	t.Helper()
	counts := map[string]int64{}
	for name, v := range metrics(t, addr) {
		labels, ok := strings.CutPrefix(name, "grpc_server_msg_received_total{")
		if !ok {
			continue
		}
		for label := range strings.SplitSeq(strings.TrimSuffix(labels, "}"), ",") {
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
