package redisconn_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// A connection that we have closed ourselves, because its server is no master any more, costs a
// request a dial; and one whose context has ended costs the next nothing.
func TestNextRequestDials(t *testing.T) {
	server := backends.SharedRedis(t)
	c := connect(t, redisconn.Config{Addrs: []string{server.Addr}})
	call := redisconn.Call{Keys: []string{"k"}}
	eval := func(when string) {
		t.Helper()
		var r redisconn.Reply
		for range 10 { // an answer after three seconds is not waited for, and only a busy machine takes so long
			began := time.Now()
			// A request that meets the closing has an unknown outcome, and drivers ask again.
			if r = c.Eval(t.Context(), one, call, 0); r.Err == nil || time.Since(began) < time.Second && !errors.Is(r.Err, net.ErrClosed) {
				break
			}
		}
		if r.Err != nil || r.Value != int64(1) {
			t.Fatalf("%s: %+v", when, r)
		}
	}
	eval("at first")
	for range 20 {
		c.Redial("")
		eval("after giving up the connections")
	}
	answered, cancelled := 0, 0
	for i := range 2000 {
		// Up to 0.2 ms at first and to 3.2 at last: on any machine some end within the request.
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%200)*time.Microsecond<<(i/400))
		if r := c.Eval(ctx, one, call, 0); r.Err == nil {
			answered++
		} else {
			cancelled++
		}
		cancel()
		eval("after a request whose context ended")
	}
	if answered == 0 || cancelled == 0 {
		t.Errorf("%d answered and %d cancelled: no context ended when it mattered", answered, cancelled)
	}
}

// A server closes a connection that is idle, as its setting timeout says: the next request is made
// on another one. (It was sent to the closed one, and its outcome was unknown.)
func TestIdleConnectionIsClosed(t *testing.T) {
	for _, secure := range []bool{false, true} {
		server := backends.StartRedis(t, backends.RedisOptions{TLS: secure})
		c := connect(t, redisconn.Config{Addrs: []string{server.Addr}, TLS: server.TLS})
		for range 3 {
			if r := c.Eval(t.Context(), one, redisconn.Call{Keys: []string{"k"}}, 0); r.Err != nil {
				t.Fatalf("secure=%t: %v", secure, r.Err)
			}
			if _, err := server.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// A server that drops its connections, before or in the handshake, fails the requests that wait for
// replicas, and nothing more: those that come when it is well are made. (The dial was under the
// mutex that its failure wanted: none was made any more.)
func TestReplicatedAfterBrokenHandshake(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	replica := backends.StartRedis(t, backends.RedisOptions{Config: []string{"repl-diskless-sync-delay 0"}})
	host, port, _ := net.SplitHostPort(server.Addr)
	if _, err := replica.Do("REPLICAOF", host, port); err != nil {
		t.Fatal(err)
	}
	network := testkit.Proxy(t, server.Addr)
	c := connect(t, redisconn.Config{Addrs: []string{network.Addr()}})
	incr := redisconn.NewScript(func() string { return "return redis.call('INCR', KEYS[1])" })
	eval := func() (failed int) {
		var wg sync.WaitGroup
		var n atomic.Int32
		for range 5 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if r := c.Eval(ctx, incr, redisconn.Call{Keys: []string{"k"}}, 1); r.Err != nil {
					n.Add(1)
				}
			})
		}
		wg.Wait()
		return int(n.Load())
	}
	works := func() { testkit.Eventually(t, "confirmed requests", func() bool { return eval() == 0 }) }
	works()
	for name, fault := range map[string]func(){
		"dropped when connected": func() {
			if err := network.Rebuff(); err != nil {
				t.Fatal(err)
			}
		},
		"dropped in the handshake": func() {
			for range 5 {
				network.Lose(faultnet.Up, 1, faultnet.Contains("HELLO"))
			}
		},
		"silent": network.Partition,
	} {
		fault()
		network.Reset()
		if eval() == 0 {
			t.Errorf("%s: all requests were confirmed", name)
		}
		network.Heal()
		if err := network.Accept(); err != nil {
			t.Fatal(err)
		}
		works()
	}
}

// However many requests wait for replicas, and however many of them are given up, the connections are
// few. (rueidis's bound of its pool sinks with each request whose context ends while it waits.)
func TestReplicatedConnectionsAreBounded(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{}) // no replica: each request waits a second
	c := connect(t, redisconn.Config{Addrs: []string{server.Addr}})
	most := 0
	for range 3 {
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		for range 200 {
			wg.Go(func() { c.Eval(ctx, one, redisconn.Call{Keys: []string{"k"}}, 1) })
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				list, err := server.Do("CLIENT", "LIST", "TYPE", "normal")
				if err != nil {
					t.Error(err)
					return
				}
				most = max(most, strings.Count(list, "name=hasp"))
			}
		})
		wg.Wait()
		cancel()
	}
	if most < 10 || most > 2*64+2 { // those that are given up are closed a moment later
		t.Errorf("%d connections", most)
	}
}
