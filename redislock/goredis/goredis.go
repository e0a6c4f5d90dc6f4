// Package goredis lets redislock use a go-redis v9 client that a program already has:
//
//	b, err := goredis.New(rdb, nil)
//	c, err := hasp.New(b)
//
// The client may be a *redis.Client (a single server, or Sentinel's failover client) or a
// *redis.ClusterClient. It stays the program's: closing the backend leaves it open. Its
// settings for retries do not matter: hasp marks its requests as not to be repeated.
//
// A program without a client should use a URL: redislock's own connection pipelines the requests
// of many goroutines, and can be cancelled.
package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// New makes a backend on a client of yours. o may be nil.
func New(client redis.UniversalClient, o *redislock.Options) (driver.Backend, error) {
	c := &conn{client: client}
	switch r := client.(type) {
	case *redis.Client:
		c.topology, c.label = redisconn.Single, "redis://"+r.Options().Addr
		if r.Options().Addr == "FailoverClient" { // what NewFailoverClient puts there
			c.topology = redisconn.Sentinel
		}
	case *redis.ClusterClient:
		c.topology, c.label = redisconn.Cluster, "redis://cluster"
		if addrs := r.Options().Addrs; len(addrs) > 0 {
			c.label = "redis://" + addrs[0]
		}
	default:
		return nil, fmt.Errorf("%w: a %T cannot carry locks; use a redis.Client or redis.ClusterClient", driver.ErrInvalid, client)
	}
	return redisconn.NewBackend(c, o)
}

// conn is a redisconn.Conn.
type conn struct {
	client   redis.UniversalClient
	topology redisconn.Topology
	label    string
}

func (c *conn) String() string               { return c.label }
func (c *conn) Topology() redisconn.Topology { return c.topology }
func (c *conn) Redial(string)                {} // a pool: the next request takes another connection
func (c *conn) Close()                       {}

// noRetry is a command that go-redis must not repeat: it would take the second answer for the
// first.
type noRetry struct{ *redis.Cmd }

func (noRetry) NoRetry() bool { return true }

// script makes the command that runs a script, by its hash or by its text.
func script(ctx context.Context, verb, script string, call redisconn.Call) noRetry {
	args := make([]any, 0, 3+len(call.Keys)+len(call.Args))
	args = append(args, verb, script, len(call.Keys))
	for _, k := range call.Keys {
		args = append(args, k)
	}
	for _, a := range call.Args {
		args = append(args, a)
	}
	return noRetry{redis.NewCmd(ctx, args...)}
}

// processor is a client, a node, or one connection of it.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// eval sends the hash, and the text if that was refused as unknown.
func eval(ctx context.Context, p processor, s *redisconn.Script, call redisconn.Call) redisconn.Reply {
	cmd := script(ctx, "evalsha", s.SHA1(), call)
	_ = p.Process(ctx, cmd) // the command has the error, too
	r := reply(cmd.Result())
	if redisconn.Answered(r.Err) == "NOSCRIPT" {
		cmd = script(ctx, "eval", s.Text(), call)
		_ = p.Process(ctx, cmd)
		r = reply(cmd.Result())
	}
	return r
}

// detached runs a request on a separate goroutine: go-redis ignores the context while it reads,
// and ends with its own time-outs.
func detached(ctx context.Context, fn func() []redisconn.Reply) []redisconn.Reply {
	if err := ctx.Err(); err != nil {
		return []redisconn.Reply{{Err: err}}
	}
	done := make(chan []redisconn.Reply, 1)
	go func() { done <- fn() }()
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
		return []redisconn.Reply{{Err: ctx.Err()}}
	}
}

func (c *conn) Eval(ctx context.Context, s *redisconn.Script, call redisconn.Call, replicas int) redisconn.Reply {
	return detached(ctx, func() []redisconn.Reply {
		if replicas > 0 {
			return []redisconn.Reply{c.evalReplicated(ctx, s, call, replicas)}
		}
		return []redisconn.Reply{eval(ctx, c.client, s, call)}
	})[0]
}

// evalReplicated uses one connection alone, because WAIT counts the writes of its connection.
func (c *conn) evalReplicated(ctx context.Context, s *redisconn.Script, call redisconn.Call, replicas int) redisconn.Reply {
	node, err := c.node(ctx, call.Keys[0])
	if err != nil {
		return redisconn.Reply{Err: err}
	}
	one := node.Conn()
	defer one.Close()
	r := eval(ctx, one, s, call)
	if r.Err != nil {
		return r
	}
	n, err := one.Wait(ctx, replicas, redisconn.WaitBound).Result()
	if err == nil && n < int64(replicas) {
		err = fmt.Errorf("%d of %d replicas have it after %s", n, replicas, redisconn.WaitBound)
	}
	if err != nil {
		return redisconn.Reply{Err: fmt.Errorf("replication is not confirmed: %w", err)}
	}
	return r
}

func (c *conn) node(ctx context.Context, key string) (*redis.Client, error) {
	if cluster, ok := c.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, key)
	}
	return c.client.(*redis.Client), nil // New accepts no other type
}

func (c *conn) NodeOf(ctx context.Context, key string) string {
	if cluster, ok := c.client.(*redis.ClusterClient); ok {
		if master, err := cluster.MasterForKey(ctx, key); err == nil { // it knows, and asks rarely
			return master.Options().Addr
		}
	}
	return ""
}

func (c *conn) EvalAll(ctx context.Context, s *redisconn.Script, calls []redisconn.Call) []redisconn.Reply {
	rs := detached(ctx, func() []redisconn.Reply {
		pipe := c.client.Pipeline()
		cmds := make([]noRetry, len(calls))
		for i, call := range calls {
			cmds[i] = script(ctx, "evalsha", s.SHA1(), call)
			_ = pipe.Process(ctx, cmds[i]) // queues it
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		rs := make([]redisconn.Reply, len(calls))
		for i := range cmds {
			rs[i] = reply(cmds[i].Result())
			if redisconn.Answered(rs[i].Err) == "NOSCRIPT" {
				rs[i] = eval(ctx, c.client, s, calls[i])
			}
		}
		return rs
	})
	for len(rs) < len(calls) {
		rs = append(rs, rs[0]) // abandoned: one error for all
	}
	return rs
}

// idlePing is after how long without a message a subscription is pinged.
const idlePing = 3 * time.Second

func (c *conn) Subscribe(ctx context.Context, channel string, up func(), message func(string)) error {
	ps := c.client.Subscribe(ctx, channel)
	defer ps.Close()
	defer context.AfterFunc(ctx, func() { _ = ps.Close() })() // Receive does not look at ctx
	asked := false
	for {
		got, err := ps.ReceiveTimeout(ctx, idlePing)
		var timeout net.Error
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &timeout) && timeout.Timeout() && !asked:
			if err := ps.Ping(ctx); err != nil {
				return err
			}
			asked = true
			continue
		case err != nil:
			return convertError(err)
		}
		asked = false
		switch m := got.(type) {
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				up()
			}
		case *redis.Message:
			message(m.Payload)
		}
	}
}

func (c *conn) Each(ctx context.Context, fn func(redisconn.Node) error) error {
	if cluster, ok := c.client.(*redis.ClusterClient); ok {
		// One after the other, because fn is not made for concurrent calls.
		turn := make(chan struct{}, 1)
		return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			turn <- struct{}{}
			defer func() { <-turn }()
			return fn(node{master})
		})
	}
	return fn(node{c.client.(*redis.Client)})
}

type node struct{ client *redis.Client }

func (n node) Addr() string { return n.client.Options().Addr }

func (n node) Do(ctx context.Context, args ...string) redisconn.Reply {
	return detached(ctx, func() []redisconn.Reply {
		all := make([]any, len(args))
		for i, a := range args {
			all[i] = a
		}
		return []redisconn.Reply{reply(n.client.Do(ctx, all...).Result())}
	})[0]
}

func reply(v any, err error) redisconn.Reply {
	if errors.Is(err, redis.Nil) {
		return redisconn.Reply{}
	}
	if err != nil {
		return redisconn.Reply{Err: convertError(err)}
	}
	if f, ok := v.(float64); ok { // RESP3 has doubles; no script of ours returns one
		v = strconv.FormatFloat(f, 'g', -1, 64)
	}
	return redisconn.Reply{Value: v}
}

func convertError(err error) error {
	var answered redis.Error
	if errors.As(err, &answered) {
		return redisconn.ServerError(answered.Error())
	}
	return err
}
