package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/redislock/redlock"
)

// A wrong URL is an error before any connection, which shows no secret of it.
func TestRefusedURLs(t *testing.T) {
	t.Parallel()
	for storeURL, want := range map[string]string{
		"redlock://a:1":                                  "three independent servers at the least",
		"redlock://a:1,b:2":                              "three independent servers at the least",
		"redlock://a:1,b:2,c:3,d:4":                      "an odd number",
		"redlock://a:1,b:2,a:1":                          "a:1 is given twice",
		"redlock://a,b,a:6379":                           "a:6379 is given twice",
		"redlock://a:1,b:2,c:x":                          "port",
		"redlock://a:1,b:2,c:3?sentinel=m":               "independent",
		"redlock://a:1,b:2,c:3?nodetimeout=1s":           "unknown parameter",
		"redlock://a:1,b:2,c:3?node_timeout=-1s":         "greater than zero",
		"redlock://a:1,b:2,c:3?prefix=a{b":               "prefix",
		"redlock://a:1,b:2,c:3?prefix=hasp:lock:":        "taken",
		"redlock://a:1,b:2,c:3?ca=/nowhere":              "parameter ca",
		"redlock://secret@a:1,b:2,c:3":                   "password",
		"redlock://u:secret@a:1,b:2,c:3?passwort=secret": "unknown parameter",
	} {
		began := time.Now()
		_, err := hasp.Open(t.Context(), storeURL)
		if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want %s", storeURL, err, want)
		}
		if took := time.Since(began); took > testkit.Patience/4 {
			t.Errorf("%s: refused after %s", storeURL, took)
		}
	}
}

// Servers may be named by their IPv6 addresses, which net/url takes in no list.
func TestServersWithIPv6Addresses(t *testing.T) {
	t.Parallel()
	var hosts []string
	for _, node := range backends.StartRedisNodes(t, 3, backends.RedisOptions{Config: []string{"bind 127.0.0.1 ::1"}}) {
		_, port, _ := strings.Cut(node.Addr, ":")
		hosts = append(hosts, "[::1]:"+port)
	}
	c := testkit.Client(t, "redlock://"+strings.Join(hosts, ","))
	testkit.Release(t, testkit.Lock(t, c, "name"))
}

// Servers that cannot vote, or would vote twice, are refused when they are met.
func TestRefusedServers(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	nodes := backends.SharedRedisNodes(t)
	set := backends.StartRedisSentinel(t)
	cluster := backends.SharedRedisCluster(t)
	_, port, _ := strings.Cut(nodes[0].Addr, ":")
	for what, c := range map[string]struct{ addr, want string }{
		"the same server under another name": {"localhost:" + port, "the same server"},
		"a replica":                          {set.Replica.Addr, "is a replica"},
		"a member of a cluster":              {cluster.Addrs()[0], "is a cluster"},
	} {
		_, err := hasp.Open(t.Context(), "redlock://"+nodes[0].Addr+","+nodes[1].Addr+","+c.addr)
		if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var twice []rueidis.Client
	for _, n := range []*backends.Redis{nodes[0], nodes[1], nodes[0]} {
		twice = append(twice, own(t, n))
	}
	if _, err := redlock.New(t.Context(), twice, nil); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "the same server") {
		t.Errorf("two clients of one server: %v", err)
	}
	if _, err := redlock.New(t.Context(), twice[:2], nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("two clients: %v", err)
	}
}

func own(t *testing.T, n *backends.Redis) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{n.Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A minority that is away does not keep a client from opening, and is used when it comes;
// with a majority away, opening says how many answer.
func TestOpenWithServersAway(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{Password: "secret"})
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	storeURL := "redlock://:secret@" + strings.Join(addrs, ",")
	if err := nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	l := testkit.Lock(t, client(t, storeURL), "a")
	if err := nodes[0].Restart(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the third server has the key, too", func() bool { return len(at(t, nodes, "a", l.ID())) == 3 })
	testkit.Release(t, l)
	for _, n := range nodes[1:] {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	_, err := hasp.Open(ctx, storeURL)
	if err == nil || !strings.Contains(err.Error(), "1 of 3 servers answer, and 2 are needed") || strings.Contains(err.Error(), "secret") {
		t.Errorf("a majority is away: %v", err)
	}
	if _, err := hasp.Open(ctx, strings.Replace(storeURL, "secret", "wrong", 1)); err == nil || strings.Contains(err.Error(), "wrong@") {
		t.Errorf("a wrong password: %v", err)
	}
}

// A minority that refuses the credentials, since they are being changed at one server after the
// other, is a minority that is away; a majority is an error that says so.
func TestOpenWithOtherCredentials(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 2, backends.RedisOptions{Password: "secret"})
	changed := backends.StartRedis(t, backends.RedisOptions{Password: "changed"})
	addrs := nodes[0].Addr + "," + nodes[1].Addr + "," + changed.Addr
	testkit.Release(t, testkit.Lock(t, client(t, "redlock://:secret@"+addrs), "a"))
	_, err := hasp.Open(testkit.Context(t), "redlock://:changed@"+addrs)
	if !errors.Is(err, hasp.ErrRefused) || !strings.Contains(err.Error(), "1 of 3 servers answer") || strings.Contains(err.Error(), "changed@") {
		t.Errorf("with the credentials of one of three: %v", err)
	}
}

// Options.NodeTimeout must be small against the TTL.
func TestNodeTimeout(t *testing.T) {
	t.Parallel()
	c, err := hasp.Open(t.Context(), urlOf(backends.SharedRedisNodes(t))+"?node_timeout=1s", hasp.WithTTL(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Mutex("a").Lock(t.Context()); !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "a quarter of the TTL (3s)") {
		t.Errorf("lock: %v", err)
	}
}

// TLS and passwords are those of every server.
func TestTLS(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{TLS: true, User: "ana", Password: "p@ss"})
	var ca []string
	u := url.URL{Scheme: "redlocks", User: url.UserPassword("ana", "p@ss")}
	for _, n := range nodes {
		u.Host += "," + n.Addr
		ca = append(ca, n.CA)
	}
	u.Host = u.Host[1:]
	_, err := hasp.Open(t.Context(), u.String()+"?ca="+url.QueryEscape(ca[0]))
	if err == nil || strings.Contains(err.Error(), "p@ss") {
		t.Errorf("servers with an unknown authority: %v", err)
	}
	together := joinFiles(t, ca)
	c := client(t, u.String()+"?ca="+url.QueryEscape(together))
	testkit.Release(t, testkit.Lock(t, c, "a"))
	if strings.Contains(c.Store(), "ana") {
		t.Errorf("the store is called %s", c.Backend())
	}
}

func findings(t *testing.T, b driver.Backend) map[string]driver.Finding {
	t.Helper()
	defer b.Close()
	return testkit.Findings(t, b)
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 5, backends.RedisOptions{AppendOnly: true, AppendFsync: "always"})
	want := func(subject string, level driver.Level, text string) {
		t.Helper()
		testkit.Until(t, subject, func() error { // a busy server may be away for one diagnosis
			if f := findings(t, testkit.Open(t, urlOf(nodes)))[subject]; f.Level != level || !strings.Contains(f.Text, text) {
				return fmt.Errorf("%+v, want %s with %q", f, level, text)
			}
			return nil
		})
	}
	want("majority", driver.Info, "5 of 5 servers answer, 3 are needed")
	want("persistence", driver.Info, "always")
	want("version", driver.Info, "Redis")
	want("clock", driver.Info, "differs")
	do(t, nodes[4], "CONFIG", "SET", "appendonly", "no")
	want("persistence", driver.Warn, nodes[4].Addr+": no append-only file")
	do(t, nodes[3], "CONFIG", "SET", "maxmemory", "100mb")
	do(t, nodes[3], "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	want("eviction", driver.Bad, nodes[3].Addr)
	each(t, nodes[:2], kill)
	want("majority", driver.Warn, "3 of 5")
	want("server", driver.Warn, nodes[0].Addr)

	b := testkit.Open(t, urlOf(nodes))
	each(t, nodes[2:3], kill)
	if f := findings(t, b)["majority"]; f.Level != driver.Bad {
		t.Errorf("a majority is away: %+v", f)
	}
}
