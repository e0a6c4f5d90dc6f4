package redisconn_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/redisconn"
)

func connect(t *testing.T, cfg redisconn.Config) redisconn.Conn {
	t.Helper()
	cfg.Label, cfg.DialTimeout = "redis", 2*time.Second
	c, err := redisconn.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var one = redisconn.NewScript("return 1")

// L3: whatever phase a request is in, it ends with its context: many at once, on a server
// that is stopped, on connections that are made while it is.
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
				if r.Err == nil {
					t.Errorf("round %d: a stopped server has answered %v", round, r.Value)
				}
				if end, _ := ctx.Deadline(); time.Since(end) > 500*time.Millisecond {
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

// A certificate that nobody we know has signed is refused, and so is plaintext.
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
		cfg.DialTimeout = 2 * time.Second
		began := time.Now()
		c, err := redisconn.Open(t.Context(), cfg)
		if err == nil {
			c.Close()
			t.Errorf("%s: connected", name)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("%s: refused after %s", name, took)
		}
	}
}
