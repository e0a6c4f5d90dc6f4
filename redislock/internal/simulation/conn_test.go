package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// conn is a client's connection: a redisconn.Conn. A request reaches a server at once, unless the
// schedule has said that it waits, or that it or its answer is lost.
type conn struct {
	client *client
	world  *world
}

// request is one on its way: scripts that are sent together, over one connection.
type request struct {
	client   *client
	script   *redisconn.Script
	calls    []redisconn.Call
	replicas int
	answer   chan []redisconn.Reply // of a request that waits
}

// all are the same answer to each call.
func (r *request) all(answer redisconn.Reply) []redisconn.Reply {
	return slices.Repeat([]redisconn.Reply{answer}, len(r.calls))
}

// fate says how a request fares.
type fate string

const (
	passes      fate = ""
	waits       fate = "waits"       // until the schedule delivers it, also when its caller has gone
	lost        fate = "lost"        // it never arrives
	unanswered  fate = "unanswered"  // it arrives, and the answer is lost
	answersLate fate = "answersLate" // it arrives, and the answer waits until the schedule delivers it
	again       fate = "again"       // it arrives twice, the second time when the schedule says so
)

var (
	errLost    = errors.New("simulation: the connection has ended, and the answer with it")
	errRefused = errors.New("simulation: connection refused")
)

func (c *conn) String() string               { return "redis://simulation" }
func (c *conn) Topology() redisconn.Topology { return c.world.topology() }
func (c *conn) Redial(string)                { c.world.hangUp(c.client) }
func (c *conn) Close()                       {}

func (c *conn) NodeOf(_ context.Context, key string) string {
	if c.world.cluster == 0 {
		return ""
	}
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	return fmt.Sprint("server ", c.client.leads(slotOf(key)))
}

func (c *conn) Eval(ctx context.Context, s *redisconn.Script, call redisconn.Call, replicas int) redisconn.Reply {
	return c.EvalAll(ctx, s, []redisconn.Call{call}, replicas)[0]
}

// EvalAll sends the calls together: what becomes of one becomes of all. In a cluster each goes to
// the server of its slot.
func (c *conn) EvalAll(ctx context.Context, s *redisconn.Script, calls []redisconn.Call, replicas int) []redisconn.Reply {
	if len(calls) > 1 && c.world.cluster > 0 {
		var all []redisconn.Reply
		for _, call := range calls {
			all = append(all, c.Eval(ctx, s, call, replicas))
		}
		return all
	}
	r := &request{client: c.client, script: s, calls: calls, replicas: replicas, answer: make(chan []redisconn.Reply, 1)}
	if err := ctx.Err(); err != nil {
		return r.all(redisconn.Reply{Err: err})
	}
	if c.world.over {
		return r.all(redisconn.Reply{Value: int64(1)})
	}
	switch c.client.nextFate() {
	case lost:
		return r.all(c.silence(ctx))
	case waits:
		c.world.hold(&delayed{request: r})
		return c.await(ctx, r)
	case unanswered:
		c.world.arrive(ctx, r, nil)
		return r.all(redisconn.Reply{Err: errLost})
	case answersLate:
		c.world.hold(&delayed{request: r, arrived: true, replies: c.world.arrive(ctx, r, nil)})
		return c.await(ctx, r)
	case again:
		answer := c.world.arrive(ctx, r, nil)
		c.world.hold(&delayed{request: r})
		return answer
	}
	return c.world.arrive(ctx, r, nil)
}

// silence is a request that nothing answers: after a while the connection is known to be dead.
func (c *conn) silence(ctx context.Context) redisconn.Reply {
	select {
	case <-ctx.Done():
		return redisconn.Reply{Err: ctx.Err()}
	case <-time.After(3 * time.Second):
		return redisconn.Reply{Err: errLost}
	}
}

func (c *conn) await(ctx context.Context, r *request) []redisconn.Reply {
	select {
	case <-ctx.Done():
		return r.all(redisconn.Reply{Err: ctx.Err()})
	case answer := <-r.answer:
		return answer
	}
}

// Subscribe listens at the server that the client's address leads to.
func (c *conn) Subscribe(ctx context.Context, channel string, up func(), message func(text string)) error {
	if c.world.over {
		<-ctx.Done()
		return ctx.Err()
	}
	sub, err := c.world.subscribe(c.client, channel, message)
	if err != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
			return err
		}
	}
	defer c.world.unsubscribe(sub)
	up()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-sub.broken:
		return errLost
	}
}

func (c *conn) Each(_ context.Context, fn func(n redisconn.Node) error) error {
	return fn(node{c.client})
}

// node is the server that the address leads to.
type node struct{ client *client }

func (n node) Addr() string { return "simulation" }

func (n node) Do(_ context.Context, args ...string) redisconn.Reply {
	w := n.client.world
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.servers[n.client.at]
	switch {
	case !s.alive || n.client.cut:
		return redisconn.Reply{Err: errRefused}
	case strings.EqualFold(args[0], "WAIT"):
		return redisconn.Reply{Value: int64(len(s.connected()))}
	}
	e := &execution{server: s, now: s.now(), noInfo: n.client.noInfo, dbIndex: n.client.db}
	switch answer := e.do(args).(type) {
	case failure:
		return redisconn.Reply{Err: redisconn.ServerError(answer)}
	case status:
		return redisconn.Reply{Value: string(answer)}
	default:
		return redisconn.Reply{Value: answer}
	}
}
