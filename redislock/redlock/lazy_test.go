package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// A server that is not there yet: requests fail at once and say that nothing was sent; when
// it comes, they reach it. What a server has refused was sent.
func TestLazy(t *testing.T) {
	one := redisconn.NewScript(func() string { return "return 1" })
	server := backends.StartRedis(t, backends.RedisOptions{})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	c := newLazy(redisconn.Config{Label: "label", Addrs: []string{server.Addr}, ConnectTimeout: 2 * time.Second})
	t.Cleanup(c.Close)
	call := redisconn.Call{Keys: []string{"k"}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := connect(ctx, c); err == nil {
		t.Error("connected without a server")
	}
	if r := c.Eval(ctx, one, call, 0); !redisconn.NotSent(r.Err) {
		t.Errorf("eval: %+v", r)
	}
	for _, r := range c.EvalAll(ctx, one, []redisconn.Call{call, call}, 0) {
		if !redisconn.NotSent(r.Err) {
			t.Errorf("one of two: %+v", r)
		}
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	var r redisconn.Reply
	for r = c.Eval(ctx, one, call, 0); r.Err != nil && ctx.Err() == nil; r = c.Eval(ctx, one, call, 0) {
		time.Sleep(10 * time.Millisecond)
	}
	if r.Err != nil || r.Value != int64(1) {
		t.Fatalf("the server is there, and: %+v", r)
	}
	if err := connect(ctx, c); err != nil {
		t.Error(err)
	}
	r = c.Eval(ctx, redisconn.NewScript(func() string { return "return redis.error_reply('NO')" }), call, 0)
	if r.Err == nil || redisconn.NotSent(r.Err) {
		t.Errorf("an answer: %+v", r)
	}
}
