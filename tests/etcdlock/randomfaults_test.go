package etcdlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/broken"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// Everything at once: clients take turns under a few names while members are killed and
// stopped, and the clients' networks held, cut and robbed of answers, at random. All that
// they believed is recorded, and checked when it is over: exclusion, the order of tokens, and
// whether any order of grants explains the answers. In the end all faults are over, every client
// must get every lock once more, and nothing may be left.
func TestRandomFaults(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	const lasts = 12 * time.Second
	c := newFaultRun(t, "faults", func(url string) *hasp.Client { return testkit.Client(t, url, hasp.WithTTL(faultRunTTL)) })
	end := time.Now().Add(lasts)
	for _, w := range c.run(func() bool { return time.Now().After(end) }, patience) {
		t.Error(w)
	}
}

// The controls: a client that believes in its locks without renewing them, and one that
// does not lock at all.
func TestRandomFaultsSees(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for name, flaw := range map[string]func(driver.Backend) driver.Backend{"liar": broken.Liar, "lawless": broken.Lawless} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newFaultRun(t, "faults-"+name, func(url string) *hasp.Client {
				return flawed(t, url, flaw, hasp.WithTTL(faultRunTTL))
			})
			// No longer than needed: the checker has enough when it has seen two hold at once.
			end := time.Now().Add(patience)
			wrong := c.run(func() bool {
				h := testkit.Must[history.History](t)(c.rec.History())
				return len(history.Exclusion(h)) > 0 || time.Now().After(end)
			}, 0)
			if !strings.Contains(strings.Join(wrong, "\n"), "exclusion") {
				t.Errorf("was not noticed: %q", wrong)
			}
		})
	}
}

const (
	faultRunTTL   = 2 * time.Second
	faultRunNames = 2
)

type faultRun struct {
	t       *testing.T
	name    string
	rec     *history.Recorder
	cluster *backends.EtcdCluster
	clients []*faultClient
}

// faultClient is a client with its own network: a proxy for each member.
type faultClient struct {
	recordedClient
	net  []*faultnet.Proxy
	got  [faultRunNames]atomic.Int64 // how often it held each name
	stop context.CancelFunc
	done sync.WaitGroup
}

func newFaultRun(t *testing.T, name string, connect func(url string) *hasp.Client) *faultRun {
	t.Helper()
	c := &faultRun{t: t, name: name, rec: history.New(), cluster: backends.StartEtcdCluster(t, backends.EtcdOptions{})}
	for i := range 3 {
		p := &faultClient{}
		var hosts []string
		for _, m := range c.cluster.Members {
			proxy := testkit.Proxy(t, m.Addr)
			p.net, hosts = append(p.net, proxy), append(hosts, proxy.Addr())
		}
		p.recordedClient = recordedClient{connect("etcd://" + strings.Join(hosts, ",")), fmt.Sprint("client-", i), c.rec}
		c.clients = append(c.clients, p)
	}
	return c
}

// run injects faults until it is over, and returns what was wrong. limit is for what must come
// when all faults are.
func (c *faultRun) run(over func() bool, limit time.Duration) (wrong []string) {
	for _, p := range c.clients {
		ctx, cancel := context.WithCancel(context.Background())
		p.stop = cancel
		for i := range faultRunNames {
			p.done.Go(func() { p.work(ctx, c.lockName(i), &p.got[i]) })
		}
	}
	c.inject(over)
	wrong = c.recovers(limit)
	for _, p := range c.clients {
		p.stop()
	}
	for _, p := range c.clients {
		p.done.Wait()
	}
	for i := range faultRunNames {
		var left []driver.Entry
		var err error
		if !waitFor(limit, func() bool { // a connection may have been lost just now, and be found so by us
			left, err = c.clients[0].Backend().List(ctx(c.t), c.lockName(i), 0)
			return err == nil && len(left) == 0
		}) {
			wrong = append(wrong, fmt.Sprintf("left under %s: %+v, %v", c.lockName(i), left, err))
		}
	}
	return append(wrong, violations(c.t, c.rec)...)
}

func (c *faultRun) lockName(i int) string { return fmt.Sprint(c.name, "-", i) }

// work locks, holds and releases until ctx ends. The first hold and one in ten is longer
// than a TTL, so that it must be renewed, or released when Held says so.
func (p *faultClient) work(ctx context.Context, name string, got *atomic.Int64) {
	for n := 0; ctx.Err() == nil; n++ {
		g, err := p.lock(ctx, name)
		if err != nil {
			time.Sleep(20 * time.Millisecond) // the store is out of reach, or we are to end
			continue
		}
		got.Add(1)
		hold := time.Duration(rand.Int64N(int64(10 * time.Millisecond)))
		if n%10 == 0 {
			hold = 2 * faultRunTTL
		}
		select {
		case <-time.After(hold):
		case <-g.Context().Done():
		}
		short, cancel := context.WithTimeout(context.Background(), faultRunTTL)
		_ = g.release(short) // what it says is on record
		cancel()
	}
}

// harm does one thing after the other, and leaves everything whole.
func (c *faultRun) inject(over func() bool) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	c.t.Logf("%s: seed %d", c.name, seed)
	done := map[string]int{}
	for !over() {
		m, p := c.cluster.Members[r.IntN(3)], c.clients[r.IntN(len(c.clients))]
		span := faultRunTTL/10 + time.Duration(r.Int64N(int64(2*faultRunTTL)))
		what := []string{"pause", "kill", "hold", "drop", "reset", "lose", "delay"}[r.IntN(7)]
		done[what]++
		switch what {
		case "pause":
			c.do(m.Pause, span, m.Resume)
		case "kill":
			c.do(m.Kill, span, m.Restart)
		case "hold":
			p.rules(span, faultnet.Rule{Mode: faultnet.Hold})
		case "drop":
			p.rules(span, faultnet.Rule{Mode: faultnet.Drop})
		case "delay":
			p.rules(span, faultnet.Rule{Delay: faultRunTTL / 10, Jitter: faultRunTTL / 4})
		case "reset":
			for _, proxy := range p.net {
				proxy.Reset()
			}
		case "lose": // answers to what the next requests on each connection asked
			for _, proxy := range p.net {
				proxy.Lose(faultnet.Down, 1+r.IntN(3), nil)
			}
		}
		time.Sleep(time.Duration(r.Int64N(int64(faultRunTTL / 4))))
	}
	for _, p := range c.clients {
		for _, proxy := range p.net {
			proxy.Heal()
		}
	}
	c.t.Logf("%s: %v", c.name, done)
}

func (c *faultRun) do(harm func() error, span time.Duration, repair func() error) {
	c.t.Helper()
	if err := harm(); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(span)
	if err := repair(); err != nil {
		c.t.Fatal(err)
	}
}

// rules has a rule in force for the party's whole network. Healing delivers what was held,
// and cuts what has lost bytes.
func (p *faultClient) rules(span time.Duration, r faultnet.Rule) {
	for _, proxy := range p.net {
		proxy.Set(faultnet.Up, r)
		proxy.Set(faultnet.Down, r)
	}
	time.Sleep(span)
	for _, proxy := range p.net {
		proxy.Heal()
	}
}

// recovers waits until every client has held every name once more (L2).
func (c *faultRun) recovers(limit time.Duration) (wrong []string) {
	for _, p := range c.clients {
		for i := range faultRunNames {
			was := p.got[i].Load()
			if !waitFor(limit, func() bool { return p.got[i].Load() > was }) {
				wrong = append(wrong, fmt.Sprintf("%s never got %s again", p.who, c.lockName(i)))
			}
		}
	}
	return wrong
}
