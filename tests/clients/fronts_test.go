package clients_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	_ "github.com/hasplock/hasp/httplock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// believed is for how long a client has believed at least that it holds a lock: from when it has
// said so, until it was asked for the last time before it said so again. By the wall clock, which
// all processes have in common: a step of it while the test runs would be seen as a violation.
type believed struct {
	who         string
	token       uint64
	from, until int64
}

// beliefs are those of all clients, by the lock's name.
type beliefs struct {
	mu     sync.Mutex
	all    map[string][]believed
	errors map[string]int
}

func newBeliefs() *beliefs { return &beliefs{all: map[string][]believed{}, errors: map[string]int{}} }

func (b *beliefs) add(name string, x believed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all[name] = append(b.all[name], x)
}

func (b *beliefs) failed(who, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errors[who+": "+what]++
}

// judge fails for a token that was granted twice, and for a client that has believed in its lock
// after another one was granted a greater token. It returns how many grants there were.
func (b *beliefs) judge(t testing.TB) (grants int, by map[string]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	by = map[string]int{}
	for name, all := range b.all {
		slices.SortFunc(all, func(x, y believed) int { return cmp.Compare(x.token, y.token) })
		latest := believed{}
		for i, x := range all {
			grants++
			by[strings.Fields(x.who)[0]]++
			if i > 0 && x.token == all[i-1].token {
				t.Errorf("%s: token %d was granted to %s and to %s", name, x.token, all[i-1].who, x.who)
			}
			if i > 0 && latest.until > x.from {
				t.Errorf("%s: %s with token %d believed %s longer in it than token %d was with %s", name, latest.who, latest.token,
					time.Duration(latest.until-x.from), x.token, x.who)
			}
			if x.until > latest.until {
				latest = x
			}
		}
	}
	return grants, by
}

// The control of the judge.
func TestJudge(t *testing.T) {
	for _, wrong := range []believed{{"b", 1, 50, 60}, {"b", 2, 9, 20}} {
		b := newBeliefs()
		b.add("n", believed{"a", 1, 0, 10})
		b.add("n", wrong)
		seen := &failures{TB: t}
		if b.judge(seen); seen.n != 1 {
			t.Errorf("%+v: %d violations", wrong, seen.n)
		}
	}
}

type failures struct {
	testing.TB
	n int
}

func (f *failures) Errorf(string, ...any) { f.n++ }

// contend has the clients take locks of three names in turn until ctx ends.
func contend(ctx context.Context, t *testing.T, b *beliefs, talkers []*talker, c *hasp.Client, prefix string) {
	names := []string{prefix + "/a", prefix + "/b", prefix + "/c"}
	var all sync.WaitGroup
	each := func(f func(name string)) {
		all.Go(func() {
			for ctx.Err() == nil {
				f(names[rand.IntN(len(names))])
				time.Sleep(rand.N(500 * time.Millisecond))
			}
		})
	}
	for i, k := range talkers {
		who := fmt.Sprintf("%s %d", k.name, i)
		each(func(name string) {
			said := k.tell("lock", name)
			x := believed{who: who, token: token(said), from: time.Now().UnixNano()}
			if x.token == 0 {
				b.failed(k.name, said)
				return
			}
			x.until = x.from
			time.Sleep(rand.N(200 * time.Millisecond))
			if asked := time.Now().UnixNano(); k.tell("held", name) == "true" {
				x.until = asked
			}
			b.add(name, x)
			if said := k.tell("release", name); said != "released" {
				b.failed(k.name, said)
			}
		})
	}
	each(func(name string) {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		l, err := c.Mutex(name).Lock(bounded)
		if err != nil {
			b.failed("Go", err.Error())
			return
		}
		x := believed{who: "Go", token: l.Token(), from: time.Now().UnixNano()}
		x.until = x.from
		time.Sleep(rand.N(200 * time.Millisecond))
		if asked := time.Now().UnixNano(); l.Held() {
			x.until = asked
		}
		b.add(name, x)
		if err := l.Release(bounded); err != nil {
			b.failed("Go", err.Error())
		}
	})
	all.Wait()
}

// forkers start Python workers that have forked, and note what they believe until the test ends.
func forkers(t *testing.T, b *beliefs, python, url, ttl, names string) (stop func()) {
	t.Helper()
	c := exec.Command(python, "-W", "error::ResourceWarning", "testdata/forkers.py", url, ttl, names)
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	c.Stderr = os.Stderr
	if err1 != nil || err2 != nil || c.Start() != nil {
		t.Fatal(err1, err2)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			f := strings.Fields(lines.Text())
			if len(f) != 4 || f[0] == "error" {
				b.failed("forked", lines.Text())
				continue
			}
			x := believed{who: "forked"}
			x.token, _ = strconv.ParseUint(f[1], 10, 64)
			x.from, _ = strconv.ParseInt(f[2], 10, 64)
			x.until, _ = strconv.ParseInt(f[3], 10, 64)
			b.add(f[0], x)
		}
	}()
	return func() {
		_ = in.Close()
		<-read
		_ = c.Wait()
	}
}

// proxy starts a program with a configuration file, and waits until it listens at addr.
func proxy(t *testing.T, addr, conf string, argv ...string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "conf")
	write(t, file, strings.ReplaceAll(conf, "DIR", dir))
	argv = slices.Clone(argv)
	for i := range argv {
		argv[i] = strings.NewReplacer("CONF", file, "DIR", dir).Replace(argv[i])
	}
	c := exec.Command(argv[0], argv[1:]...)
	said := new(strings.Builder)
	c.Stderr = said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait() // by the signal
	})
	testkit.Until(t, argv[0]+" to listen", func() error {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, said)
		}
		return conn.Close()
	})
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// nginxRandom leads each request to one of two servers at random, and compresses answers.
const nginxRandom = `user root; daemon off; pid DIR/pid; error_log DIR/errors;
events {}
http { access_log off; client_body_temp_path DIR/a; proxy_temp_path DIR/b; fastcgi_temp_path DIR/c; uwsgi_temp_path DIR/d; scgi_temp_path DIR/e;
  gzip on; gzip_min_length 1; gzip_proxied any; gzip_types application/json application/problem+json text/plain;
  upstream hasp { BALANCE server ONE max_fails=0; server TWO max_fails=0; }
  server { listen ADDR; location / { proxy_pass http://hasp; proxy_set_header Host 127.0.0.1; proxy_next_upstream error; proxy_connect_timeout 1s; } } }`

// haproxyH2 speaks HTTP/2 to the servers, a few streams to a connection, and compresses answers.
const haproxyH2 = `global
  tune.h2.max-concurrent-streams 4
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  retries 2
  option redispatch
  compression algo gzip
  compression type application/json application/problem+json text/plain
frontend f
  bind ADDR
  http-request set-header Host 127.0.0.1
  default_backend b
backend b
  balance BALANCE
  http-reuse always
  server one ONE proto h2 check inter 500ms fall 2 rise 1
  server two TWO proto h2 check inter 500ms fall 2 rise 1
`

// fronts is how long each of the following runs lasts; FRONTS=10m before a release.
func fronts(t *testing.T) time.Duration {
	d, err := time.ParseDuration(cmp.Or(os.Getenv("FRONTS"), "20s"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Clients of all three languages, and Python workers that have forked, behind proxies before two
// servers, one of which is killed or ends every while. No two have a lock at the same time, no token
// is granted twice, and at the end nothing is left.
func TestFronts(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	const ttl = "6"
	start := talkers(t, ttl)
	python := installPython(t, backends.Python(t), setUp(t, "python"))
	nginx := []string{backends.Nginx(t), "-p", "DIR", "-c", "CONF", "-e", "DIR/errors"}
	haproxy := []string{backends.HAProxy(t), "-db", "-f", "CONF"}
	for what, front := range map[string]struct {
		conf, balance string
		argv          []string
		kills, stops  bool // of servers, of clients
	}{
		"nginx, random":                {nginxRandom, "random;", nginx, false, false},
		"nginx, affinity":              {nginxRandom, "ip_hash;", nginx, true, false},
		"HAProxy, HTTP/2, affinity":    {haproxyH2, "source", haproxy, true, false},
		"HAProxy, HTTP/2, random":      {haproxyH2, "random", haproxy, true, false},
		"HAProxy, clients are stopped": {haproxyH2, "source", haproxy, false, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			store := backends.StartRedis(t, backends.RedisOptions{}).URL()
			servers := []*haspserve.Server{haspserve.New(t, store, "--ttl", ttl+"s"), haspserve.New(t, store, "--ttl", ttl+"s")}
			addr := freeAddr(t)
			proxy(t, addr, strings.NewReplacer("BALANCE", front.balance, "ADDR", addr, "ONE", servers[0].Addr, "TWO", servers[1].Addr).Replace(front.conf), front.argv...)
			var c *hasp.Client
			testkit.Until(t, "the first client", func() (err error) {
				c, err = hasp.Open(t.Context(), "hasp+http://"+addr+"?ttl="+ttl+"s")
				return err
			})
			defer c.Close()
			b, prefix := newBeliefs(), "fronts"
			all := append(start("http://"+addr), start("http://"+addr)...)
			ctx, cancel := context.WithTimeout(t.Context(), fronts(t))
			defer cancel()
			stop := forkers(t, b, python, "http://"+addr, ttl, prefix+"/a,"+prefix+"/b,"+prefix+"/c")
			var faults atomic.Int64
			var nemesis sync.WaitGroup
			nemesis.Go(func() {
				for ctx.Err() == nil && (front.kills || front.stops) {
					select {
					case <-ctx.Done():
						return
					case <-time.After(5*time.Second + rand.N(10*time.Second)):
					}
					faults.Add(1)
					if front.stops {
						k := all[rand.IntN(len(all))]
						_ = syscall.Kill(k.pid, syscall.SIGSTOP)
						time.Sleep(rand.N(15 * time.Second))
						_ = syscall.Kill(k.pid, syscall.SIGCONT)
						continue
					}
					s := servers[rand.IntN(2)]
					if rand.IntN(2) == 0 {
						s.Signal(syscall.SIGTERM)
						time.Sleep(time.Second + rand.N(2*time.Second))
					}
					s.Kill()
					time.Sleep(rand.N(2 * time.Second))
					s.Start()
				}
			})
			contend(ctx, t, b, all, c, prefix)
			nemesis.Wait()
			stop()
			grants, by := b.judge(t)
			t.Logf("%s: %d grants %v under %d faults in %s; errors:", what, grants, by, faults.Load(), fronts(t))
			for text, n := range b.errors {
				t.Logf("%6d %s", n, text)
			}
			if grants == 0 {
				t.Error("no lock was granted: this shows nothing")
			}
			for _, k := range all {
				k.ends()
			}
			beside := testkit.Client(t, store)
			for _, name := range []string{"a", "b", "c"} {
				testkit.Eventually(t, "the store to be empty", func() bool { return len(testkit.Entries(t, beside, prefix+"/"+name)) == 0 })
			}
		})
	}
}
