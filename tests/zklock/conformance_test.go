package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	_ "github.com/hasplock/hasp/zklock"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func TestConformance(t *testing.T) {
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	h := harness(t, "", z)
	h.Reopen = func(t testing.TB) {
		if err := errors.Join(z.Kill(), z.Restart()); err != nil {
			t.Fatal(err)
		}
	}
	drivertest.Run(t, h)
}

// Side by side, but beside nothing else: what else there is to run in parallel waits until
// this has ended, as drivertest.Run demands. All servers run before the first of them begins:
// their connections would look like leaks.
func TestConformanceOthers(t *testing.T) {
	testtier.Long(t)
	t.Run("Ensemble", func(t *testing.T) {
		h := harness(t, "", ensemble(t).Members...)
		t.Parallel()
		// Three servers on one small machine answer late at times, and a renewal that takes four
		// tenths of the timeout comes too late, as trust is counted from the one before: see
		// renewalTimes.
		h.TTL = 5 * time.Second
		drivertest.Run(t, h)
	})
	t.Run("Node", func(t *testing.T) {
		h := harness(t, "?strategy=node", backends.SharedZooKeeper(t))
		t.Parallel()
		drivertest.Run(t, h)
	})
}

func harness(t testing.TB, params string, servers ...*backends.ZooKeeper) drivertest.Harness {
	// A busy machine takes its time to greet. Among several servers the next one may be faster.
	timeout := "20s"
	if len(servers) > 1 {
		timeout = "5s"
	}
	if params += "&connect_timeout=" + timeout; params[0] == '&' {
		params = "?" + params[1:]
	}
	storeURL := urlOf(servers...) + "/drivertest" + params
	return withPrograms(params, servers, drivertest.Harness{
		Open:    func(t testing.TB) driver.Backend { return openProxied(t, params, servers) },
		URL:     storeURL,
		Cut:     func(_ testing.TB, b driver.Backend) func() { return b.(interface{ cut() func() }).cut() },
		Counted: testkit.Counted(storeURL),
		TTL:     4 * time.Second, // eight ticks of the test servers
		Ops: func() (n int64) {
			for _, z := range servers {
				n += received(t, z)
			}
			return n
		},
	})
}

func urlOf(servers ...*backends.ZooKeeper) string {
	var hosts []string
	for _, z := range servers {
		hosts = append(hosts, z.Addr)
	}
	return "zookeeper://" + strings.Join(hosts, ",")
}

// proxied is a backend behind a network that can be cut. The client library keeps sessions
// alive by itself: withholding the driver's calls would not make one expire.
type proxied struct {
	driver.Backend
	driver.Watcher
	driver.Namer
	driver.Evicter
	driver.Diagnoser
	net []*faultnet.Proxy
}

func openProxied(t testing.TB, params string, servers []*backends.ZooKeeper) driver.Backend {
	t.Helper()
	p := &proxied{}
	var hosts []string
	for _, z := range servers {
		n, err := faultnet.New(context.Background(), z.Addr) // ends with the backend
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close) // for a test that fails before it closes the backend
		p.net = append(p.net, n)
		hosts = append(hosts, n.Addr())
	}
	p.Backend = testkit.Open(t, "zookeeper://"+strings.Join(hosts, ",")+"/drivertest"+params)
	p.Watcher = p.Backend.(driver.Watcher)
	p.Namer = p.Backend.(driver.Namer)
	p.Evicter = p.Backend.(driver.Evicter)
	p.Diagnoser = p.Backend.(driver.Diagnoser)
	return p
}

func (p *proxied) Close() error {
	err := p.Backend.Close()
	for _, n := range p.net {
		n.Close()
	}
	return err
}

func (p *proxied) cut() (heal func()) {
	for _, n := range p.net {
		n.Partition()
	}
	return func() {
		for _, n := range p.net {
			n.Heal()
		}
	}
}

// received is how many packets a server has received from its clients.
func received(t testing.TB, z *backends.ZooKeeper) int64 {
	t.Helper()
	n, err := counter(z, "zk_packets_received")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// counter reads one of the server's own numbers.
func counter(z *backends.ZooKeeper, key string) (int64, error) {
	reply, err := z.Ask("mntr")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(reply) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"\t"); ok {
			f, err := strconv.ParseFloat(v, 64)
			return int64(f), err
		}
	}
	return 0, fmt.Errorf("%s does not tell %s", z.Addr, key)
}

// All who wait for a mutex are told their places.
func TestPlaces(t *testing.T) {
	t.Parallel()
	testkit.Places(t, testkit.Open(t, urlOf(backends.SharedZooKeeper(t))+"/places"), 1, 2, 3, 4, 5)
}
