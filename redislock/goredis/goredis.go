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
	"slices"
	"strconv"
	"sync"
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

// evalAll sends scripts in one pipeline. With replicas it ends with a WAIT, which counts the writes
// of its connection: a pipeline to one server has one. asking: the slots are on their way there.
func evalAll(ctx context.Context, client redis.UniversalClient, s *redisconn.Script, calls []redisconn.Call, replicas int, asking bool) []redisconn.Reply {
	return redisconn.ByHash(calls, func(calls []redisconn.Call, text bool) []redisconn.Reply {
		verb, which := "evalsha", s.SHA1()
		if text {
			verb, which = "eval", s.Text()
		}
		pipe := client.Pipeline()
		add := func(cmd noRetry) noRetry {
			_ = pipe.Process(ctx, cmd) // queues it
			return cmd
		}
		cmds := make([]noRetry, len(calls))
		for i, call := range calls {
			if asking {
				add(noRetry{redis.NewCmd(ctx, "asking")})
			}
			cmds[i] = add(script(ctx, verb, which, call))
		}
		wait := noRetry{redis.NewCmd(ctx, "wait", replicas, redisconn.WaitBound.Milliseconds())}
		if replicas > 0 {
			add(wait)
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		rs := make([]redisconn.Reply, len(calls))
		for i, cmd := range cmds {
			if rs[i] = reply(cmd.Result()); replicas > 0 {
				rs[i] = rs[i].Confirmed(reply(wait.Result()), replicas)
			}
		}
		return rs
	})
}

// evalReplicated sends scripts with a WAIT behind them: in a cluster to the nodes, since its client
// would follow MOVED for a script alone.
func (c *conn) evalReplicated(ctx context.Context, s *redisconn.Script, calls []redisconn.Call, replicas int) []redisconn.Reply {
	cluster, ok := c.client.(*redis.ClusterClient)
	if !ok {
		return evalAll(ctx, c.client, s, calls, replicas, false)
	}
	first := func(call redisconn.Call) string { return c.NodeOf(ctx, call.Keys[0]) }
	return redisconn.Redirect(calls, first, func(at redisconn.Place, calls []redisconn.Call) []redisconn.Reply {
		var node *redis.Client
		var mu sync.Mutex
		err := cluster.ForEachShard(ctx, func(_ context.Context, n *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			if n.Options().Addr == at.Addr {
				node = n
			}
			return nil
		})
		if node == nil {
			cluster.ReloadState(ctx)
			return slices.Repeat([]redisconn.Reply{{Err: fmt.Errorf("the cluster's client does not know the node %q yet (%v)", at.Addr, err)}}, len(calls))
		}
		rs := evalAll(ctx, node, s, calls, replicas, at.Asking)
		if slices.ContainsFunc(rs, func(r redisconn.Reply) bool { return redisconn.Answered(r.Err) == "MOVED" }) {
			cluster.ReloadState(ctx)
		}
		return rs
	})
}

func (c *conn) Eval(ctx context.Context, s *redisconn.Script, call redisconn.Call, replicas int) redisconn.Reply {
	if replicas > 0 {
		return c.EvalAll(ctx, s, []redisconn.Call{call}, replicas)[0]
	}
	return detached(ctx, 1, func() []redisconn.Reply {
		cmd := script(ctx, "evalsha", s.SHA1(), call)
		_ = c.client.Process(ctx, cmd) // the command has the error, too
		r := reply(cmd.Result())
		if redisconn.Answered(r.Err) == "NOSCRIPT" {
			cmd = script(ctx, "eval", s.Text(), call)
			_ = c.client.Process(ctx, cmd)
			r = reply(cmd.Result())
		}
		return []redisconn.Reply{r}
	})[0]
}

func (c *conn) EvalAll(ctx context.Context, s *redisconn.Script, calls []redisconn.Call, replicas int) []redisconn.Reply {
	return detached(ctx, len(calls), func() []redisconn.Reply {
		if replicas > 0 {
			return c.evalReplicated(ctx, s, calls, replicas)
		}
		return evalAll(ctx, c.client, s, calls, 0, false)
	})
}

// detached runs a request on a separate goroutine: go-redis ignores the context while it reads,
// and ends with its own time-outs.
func detached(ctx context.Context, answers int, fn func() []redisconn.Reply) []redisconn.Reply {
	failed := func(err error) []redisconn.Reply { return slices.Repeat([]redisconn.Reply{{Err: err}}, answers) }
	if err := ctx.Err(); err != nil {
		return failed(err)
	}
	return redisconn.Detached(ctx, fn, failed)
}

func (c *conn) NodeOf(ctx context.Context, key string) string {
	if cluster, ok := c.client.(*redis.ClusterClient); ok {
		if master, err := cluster.MasterForKey(ctx, key); err == nil { // it knows, and asks rarely
			return master.Options().Addr
		}
	}
	return ""
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
	return detached(ctx, 1, func() []redisconn.Reply {
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
