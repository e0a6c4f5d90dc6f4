package redisconn_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
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
