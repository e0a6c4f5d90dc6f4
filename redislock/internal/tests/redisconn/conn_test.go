package redisconn_test

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

func connect(t *testing.T, cfg redisconn.Config) redisconn.Conn {
	t.Helper()
	// Longer than a busy machine needs, and than any context here: a test's own end must come
	// first.
	cfg.Label, cfg.ConnectTimeout = "redis", 20*time.Second
	c, err := redisconn.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var one = redisconn.NewScript(func() string { return "return 1" })

// L3: a request ends with its context in every phase: many at once, on a stopped server, on
// connections that are made while it is stopped.
func TestEndsWithContext(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := connect(t, redisconn.Config{Addrs: []string{server.Addr}})
	call := redisconn.Call{Keys: []string{"k"}}
	if r := c.Eval(t.Context(), one, call, 0); r.Err != nil || r.Value != int64(1) {
		t.Fatalf("%+v", r)
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	defer server.Resume()
	for round := range 3 {
		var wg sync.WaitGroup
		for i := range 700 { // more than rueidis has places for
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+i%100)*time.Millisecond)
				defer cancel()
				r := c.Eval(ctx, one, call, 0)
				// By its context, not by the ping that finds the server silent after some seconds.
				if !errors.Is(r.Err, context.DeadlineExceeded) && !errors.Is(r.Err, net.ErrClosed) { // closed by Redial
					t.Errorf("round %d: a stopped server has answered %v, %v", round, r.Value, r.Err)
				}
				if end, _ := ctx.Deadline(); time.Since(end) > 20*time.Second { // 700 at once on a busy machine
					t.Errorf("round %d: returned %s after its context", round, time.Since(end))
				}
			})
		}
		wg.Wait()
		c.Redial("") // the next round meets a connection in the making
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		r := c.Eval(ctx, one, call, 0)
		if r.Err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the server is back, and: %v", r.Err)
		}
	}
}

// L7: a server that takes connections and drops them is dialled a few times a second,
// however many requests want one.
func TestDialsAreSpaced(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := connect(t, redisconn.Config{Addrs: []string{server.Addr}})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	var err error
	for range 100 { // the port is ours as soon as the kernel says so
		if l, err = net.Listen("tcp", server.Addr); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	dials := make(chan int, 1)
	go func() {
		n := 0
		for {
			conn, err := l.Accept()
			if err != nil {
				dials <- n
				return
			}
			n++
			conn.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c.Eval(ctx, one, redisconn.Call{Keys: []string{"k"}}, 0)
			}
		})
	}
	wg.Wait()
	l.Close()
	// Two connections, each after 50, 100, 200, 400, 800, 1000 ms.
	if n := <-dials; n > 24 || n == 0 {
		t.Errorf("%d dials in 3 s", n)
	}
}

// A certificate that no known authority has signed is refused, and so is plaintext.
func TestTLS(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{TLS: true})
	good := connect(t, redisconn.Config{Addrs: []string{server.Addr}, TLS: server.TLS})
	if r := good.Eval(t.Context(), one, redisconn.Call{Keys: []string{"k"}}, 0); r.Err != nil {
		t.Error(r.Err)
	}
	strange := server.TLS.Clone()
	strange.RootCAs = nil
	wrong := server.TLS.Clone()
	wrong.ServerName = "elsewhere.example"
	plain := backends.SharedRedis(t)
	for name, cfg := range map[string]redisconn.Config{
		"unknown signer":   {Addrs: []string{server.Addr}, TLS: strange},
		"wrong name":       {Addrs: []string{server.Addr}, TLS: wrong},
		"plaintext client": {Addrs: []string{server.Addr}},
		"plaintext server": {Addrs: []string{plain.Addr}, TLS: server.TLS},
	} {
		// Refused by what the other side answers. A server that waits for the end of a line answers
		// nothing: there the time ends it.
		cfg.ConnectTimeout = 2 * testkit.Patience
		if name == "plaintext server" {
			cfg.ConnectTimeout = 2 * time.Second
		}
		began := time.Now()
		c, err := redisconn.Open(t.Context(), cfg)
		if err == nil {
			c.Close()
			t.Errorf("%s: connected", name)
		}
		if took := time.Since(began); took > testkit.Patience {
			t.Errorf("%s: refused after %s", name, took)
		}
	}
}

// A connection to a node of a cluster is closed by the node's name in the cluster, also
// where it does not know its own host. (Nothing was closed then, so that a connection that
// hung swallowed each renewal.)
func TestRedialOfANodeWithoutHost(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{Config: []string{"cluster-enabled yes"}})
	add := []string{"CLUSTER", "ADDSLOTS"}
	for slot := range 1 << 14 {
		add = append(add, strconv.Itoa(slot))
	}
	if out, err := server.Do(add...); err != nil || out != "OK" {
		t.Fatal(out, err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if info, err := server.Do("CLUSTER", "INFO"); err == nil && strings.Contains(info, "cluster_state:ok") {
			break
		} else if time.Now().After(end) {
			t.Fatal(info, err)
		}
	}
	c := connect(t, redisconn.Config{Addrs: []string{server.Addr}})
	if c.Topology() != redisconn.Cluster {
		t.Fatalf("it is a %s", c.Topology())
	}
	// id returns the number of the connection that a request has used.
	id := func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for { // the library may ask for the slots on it in between
			if r := c.Eval(ctx, one, redisconn.Call{Keys: []string{"k"}}, 0); ctx.Err() != nil {
				t.Fatal(r.Err)
			} else if r.Value != int64(1) {
				continue
			}
			list, err := server.Do("CLIENT", "LIST")
			if err != nil {
				t.Fatal(err)
			}
			if found := regexp.MustCompile(`(?m)^id=(\d+) .* name=hasp .* cmd=eval`).FindAllStringSubmatch(list, -1); len(found) == 1 {
				return found[0][1]
			}
		}
	}
	before := id()
	node := ""
	testkit.Eventually(t, "the slots", func() bool { // a busy server is not asked for longer than a moment
		node = c.NodeOf(t.Context(), "k")
		return node != ""
	})
	if told, err := server.Do("CLUSTER", "SLOTS"); err != nil || strings.Contains(told, "127.0.0.1") || node != server.Addr {
		t.Fatalf("the node is at %q, and has told %q, %v", node, told, err)
	}
	c.Redial("127.0.0.1:1") // another's
	if after := id(); after != before {
		t.Errorf("the connection %v has become %v, and another node's was closed", before, after)
	}
	c.Redial(node)
	if after := id(); after == before {
		t.Errorf("the connection %v is open", after)
	}
}
