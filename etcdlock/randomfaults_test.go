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
// they believed is recorded, and judged when it is over: exclusion, the order of tokens, and
// whether any order of grants explains the answers. In the end all faults are over, everybody
// must get every lock once more, and nothing may be left.
func TestChaos(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	const lasts = 12 * time.Second
	c := newChaos(t, "chaos", func(url string) *hasp.Client { return testkit.Client(t, url, hasp.WithTTL(chaosTTL)) })
	end := time.Now().Add(lasts)
	for _, w := range c.run(func() bool { return time.Now().After(end) }, patience) {
		t.Error(w)
	}
}

// The controls: a client that believes in its locks without renewing them, and one that
// does not lock at all.
func TestChaosSees(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for name, flaw := range map[string]func(driver.Backend) driver.Backend{"liar": broken.Liar, "lawless": broken.Lawless} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChaos(t, "chaos-"+name, func(url string) *hasp.Client {
				return flawed(t, url, flaw, hasp.WithTTL(chaosTTL))
			})
			// No longer than it takes: the judge has enough when he has seen two hold at once.
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
	chaosTTL   = 2 * time.Second
	chaosNames = 2
)

type chaos struct {
	t       *testing.T
	name    string
	rec     *history.Recorder
	cluster *backends.EtcdCluster
	parties []*party
}

// party is a client with a network of its own: a proxy for each member.
type party struct {
	witness
	net  []*faultnet.Proxy
	got  [chaosNames]atomic.Int64 // how often it held each name
	stop context.CancelFunc
	done sync.WaitGroup
}

func newChaos(t *testing.T, name string, connect func(url string) *hasp.Client) *chaos {
	t.Helper()
	c := &chaos{t: t, name: name, rec: history.New(), cluster: backends.StartEtcdCluster(t, backends.EtcdOptions{})}
	for i := range 3 {
		p := &party{}
		var hosts []string
		for _, m := range c.cluster.Members {
			proxy := testkit.Proxy(t, m.Addr)
			p.net, hosts = append(p.net, proxy), append(hosts, proxy.Addr())
		}
		p.witness = witness{connect("etcd://" + strings.Join(hosts, ",")), fmt.Sprint("client-", i), c.rec}
		c.parties = append(c.parties, p)
	}
	return c
}

// run does harm until it is over, and returns what was wrong. limit is for what must come
// when all faults are.
func (c *chaos) run(over func() bool, limit time.Duration) (wrong []string) {
	for _, p := range c.parties {
		ctx, cancel := context.WithCancel(context.Background())
		p.stop = cancel
		for i := range chaosNames {
			p.done.Go(func() { p.work(ctx, c.lockName(i), &p.got[i]) })
		}
	}
	c.harm(over)
	wrong = c.recovers(limit)
	for _, p := range c.parties {
		p.stop()
	}
	for _, p := range c.parties {
		p.done.Wait()
	}
	for i := range chaosNames {
		var left []driver.Entry
		var err error
		if !waitFor(limit, func() bool { // a connection may have been lost just now, and be found so by us
			left, err = c.parties[0].Backend().List(ctx(c.t), c.lockName(i), 0)
			return err == nil && len(left) == 0
		}) {
			wrong = append(wrong, fmt.Sprintf("left under %s: %+v, %v", c.lockName(i), left, err))
		}
	}
	return append(wrong, violations(c.t, c.rec)...)
}

func (c *chaos) lockName(i int) string { return fmt.Sprint(c.name, "-", i) }

// work locks, holds and releases until ctx ends. The first hold and one in ten is longer
// than a TTL, so that it must be renewed, or given up when Held says so.
func (p *party) work(ctx context.Context, name string, got *atomic.Int64) {
	for n := 0; ctx.Err() == nil; n++ {
		g, err := p.lock(ctx, name)
		if err != nil {
			time.Sleep(20 * time.Millisecond) // the store is out of reach, or we are to end
			continue
		}
		got.Add(1)
		hold := time.Duration(rand.Int64N(int64(10 * time.Millisecond)))
		if n%10 == 0 {
			hold = 2 * chaosTTL
		}
		select {
		case <-time.After(hold):
		case <-g.Lost():
		}
		short, cancel := context.WithTimeout(context.Background(), chaosTTL)
		_ = g.release(short) // what it says is on record
		cancel()
	}
}

// harm does one thing after the other, and leaves everything whole.
func (c *chaos) harm(over func() bool) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	c.t.Logf("%s: seed %d", c.name, seed)
	done := map[string]int{}
	for !over() {
		m, p := c.cluster.Members[r.IntN(3)], c.parties[r.IntN(len(c.parties))]
		span := chaosTTL/10 + time.Duration(r.Int64N(int64(2*chaosTTL)))
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
			p.rules(span, faultnet.Rule{Delay: chaosTTL / 10, Jitter: chaosTTL / 4})
		case "reset":
			for _, proxy := range p.net {
				proxy.Reset()
			}
		case "lose": // answers to what the next requests on each connection asked
			for _, proxy := range p.net {
				proxy.Lose(faultnet.Down, 1+r.IntN(3), nil)
			}
		}
		time.Sleep(time.Duration(r.Int64N(int64(chaosTTL / 4))))
	}
	for _, p := range c.parties {
		for _, proxy := range p.net {
			proxy.Heal()
		}
	}
	c.t.Logf("%s: %v", c.name, done)
}

func (c *chaos) do(harm func() error, span time.Duration, repair func() error) {
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
func (p *party) rules(span time.Duration, r faultnet.Rule) {
	for _, proxy := range p.net {
		proxy.Set(faultnet.Up, r)
		proxy.Set(faultnet.Down, r)
	}
	time.Sleep(span)
	for _, proxy := range p.net {
		proxy.Heal()
	}
}

// recovers waits until everybody has held every name once more (L2).
func (c *chaos) recovers(limit time.Duration) (wrong []string) {
	for _, p := range c.parties {
		for i := range chaosNames {
			was := p.got[i].Load()
			if !waitFor(limit, func() bool { return p.got[i].Load() > was }) {
				wrong = append(wrong, fmt.Sprintf("%s never got %s again", p.who, c.lockName(i)))
			}
		}
	}
	return wrong
}
