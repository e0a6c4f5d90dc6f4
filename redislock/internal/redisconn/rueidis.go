package redisconn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// rueidisConn uses redis/rueidis: the requests of all goroutines share one connection and are
// pipelined, and the subscriptions have another one, which is made when it is needed. Rejected: a
// third for a request while no other is under way, on which rueidis reads on the caller's
// goroutine. One client alone needs 31 us of its processor for a lock and its release then, in place
// of 52: rueidis's two goroutines for a connection cost as much as the system calls. No option of
// rueidis saves them: without AlwaysPipelining the first two requests that overlap start them for
// good, and until then nothing can be cancelled. Such a request cannot be cancelled either, a
// connection that the server has closed is found by a system call alone, and both took 250 lines.
type rueidisConn struct {
	client    rueidis.Client
	pubsub    *pubsub
	waiting   sync.Map     // by node: see mostWaiting
	redialled atomic.Int64 // when connections were closed because the server was no master
	dialer    *dialer      // nil if the client is the user's
	label     string
	topology  Topology
	slotNodes slotNodes // the nodes of a cluster's slots

	// healthy says that the last event of the shared connection was an answer, and inFlight how
	// many requests are on it. See run.
	healthy  atomic.Bool
	inFlight atomic.Int32
}

// maxInline is below the number of requests that rueidis can have on the way (ringScale): beyond
// it a request waits for a free place in the ring, without regard to its context.
const (
	ringScale = 9 // 512 places
	maxInline = 256
)

// FromRueidis makes a Conn of a user's client, which stays open when the Conn is closed. By
// default rueidis repeats read-only commands alone, and scripts are none.
func FromRueidis(client rueidis.Client) Conn {
	nodes := slices.Sorted(maps.Keys(client.Nodes()))
	c := &rueidisConn{client: client, topology: topologyOf(client), pubsub: newPubsub(client)}
	if len(nodes) > 0 {
		c.label = "redis://" + nodes[0]
	}
	return c
}

// Open connects. ctx bounds the connecting only.
func Open(ctx context.Context, cfg Config) (Conn, error) {
	type opened struct {
		conn *rueidisConn
		err  error
	}
	// NewClient takes no context. An abandoned call ends with the dial time-out.
	done := make(chan opened, 1)
	go func() {
		c, err := open(cfg)
		done <- opened{c, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, fmt.Errorf("%s: %w", cfg.Label, cfg.unconnected(o.err))
		}
		return o.conn, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				o.conn.Close()
			}
		}()
		return nil, fmt.Errorf("%s: connecting: %w", cfg.Label, ctx.Err())
	}
}

func open(cfg Config) (*rueidisConn, error) {
	c := &rueidisConn{label: cfg.Label}
	c.dialer = newDialer(func() { c.healthy.Store(false) })
	c.dialer.secure = cfg.Secure // before anything dials
	var err error
	if c.client, err = rueidis.NewClient(cfg.options(c.dialer)); err != nil {
		err = convertError(err)
		if refusal, _ := c.dialer.refusal.Load().(ServerError); refusal != "" && Answered(err) == "" {
			err = fmt.Errorf("%w (%v)", refusal, err)
		}
		return nil, err
	}
	c.topology = topologyOf(c.client)
	c.pubsub = newPubsub(c.client)
	return c, nil
}

func topologyOf(client rueidis.Client) Topology {
	switch client.Mode() {
	case rueidis.ClientModeCluster:
		return Cluster
	case rueidis.ClientModeSentinel:
		return Sentinel
	}
	return Single
}

func (c *rueidisConn) String() string     { return c.label }
func (c *rueidisConn) Topology() Topology { return c.topology }

// withoutDeadline hides the deadline: with one, rueidis would read the answer on the caller's
// goroutine, where a cancellation has no effect. Without it, the end of ctx has.
type withoutDeadline struct{ context.Context }

func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// run makes a request that must not outlast ctx. rueidis obeys ctx once the request is on its
// way, but not during another request's dial or handshake, nor while its ring is full. On a
// healthy connection neither happens, and the request runs on its caller's goroutine, which saves
// a hand-over in each direction. Otherwise it runs on another goroutine and is abandoned when ctx
// ends; failed makes the answer for that.
func run[T any](ctx context.Context, c *rueidisConn, fn func(context.Context) (T, error), failed func(error) T) T {
	if err := ctx.Err(); err != nil {
		return failed(err)
	}
	do := func() T {
		v, err := fn(withoutDeadline{ctx})
		if ok := err == nil || Answered(err) != ""; ok != c.healthy.Load() {
			c.healthy.Store(ok)
		}
		return v
	}
	if n := c.inFlight.Add(1); n <= maxInline && c.healthy.Load() {
		defer c.inFlight.Add(-1)
		return do()
	}
	return Detached(ctx, func() T {
		defer c.inFlight.Add(-1)
		return do()
	}, failed)
}

// Detached makes a request that may not obey ctx on a separate goroutine, and abandons it when ctx
// ends; failed makes the answer for that.
func Detached[T any](ctx context.Context, do func() T, failed func(error) T) T {
	done := make(chan T, 1)
	go func() { done <- do() }()
	select {
	case v := <-done:
		return v
	case <-ctx.Done():
		return failed(ctx.Err())
	}
}

// one runs a request with one answer.
func (c *rueidisConn) one(ctx context.Context, fn func(context.Context) Reply) Reply {
	return run(ctx, c, func(ctx context.Context) (Reply, error) {
		r := fn(ctx)
		return r, r.Err
	}, func(err error) Reply { return Reply{Err: err} })
}

func (c *rueidisConn) Subscribe(ctx context.Context, channel string, up func(), message func(string)) error {
	return c.pubsub.subscribe(ctx, channel, up, message)
}

func (c *rueidisConn) NodeOf(ctx context.Context, key string) string {
	if c.topology != Cluster {
		return ""
	}
	get := c.client.B().Get().Key(key).Build() // rueidis knows the slot of a key by building a command
	return c.slotNodes.of(ctx, get.Slot(), c.slots)
}

// slots asks the nodes one after the other which node has which slots, until one answers. A node
// that does not know its own address has the one by which it was asked.
func (c *rueidisConn) slots(ctx context.Context) (answer any, host string) {
	for addr, client := range c.client.Nodes() {
		n := &rueidisNode{conn: c, client: client}
		asking, cancel := context.WithTimeout(ctx, slotsBound)
		r := n.Do(asking, "CLUSTER", "SLOTS")
		cancel()
		if r.Err == nil || ctx.Err() != nil {
			host, _, _ = net.SplitHostPort(addr)
			return r.Value, host
		}
	}
	return nil, ""
}

func (c *rueidisConn) Redial(node string) {
	c.slotNodes.forget()
	if c.dialer != nil {
		c.dialer.close(node)
	}
}

func (c *rueidisConn) Close() {
	if c.dialer == nil {
		return
	}
	// In the background: rueidis waits up to a second for the answer of a silent server.
	go c.client.Close()
}

func (c *rueidisConn) Each(ctx context.Context, fn func(Node) error) error {
	nodes := c.client.Nodes()
	for _, addr := range slices.Sorted(maps.Keys(nodes)) {
		n := &rueidisNode{conn: c, client: nodes[addr], addr: addr}
		if c.topology == Cluster {
			role := n.Do(ctx, "ROLE")
			if role.Err != nil {
				return fmt.Errorf("%s: %w", addr, role.Err)
			}
			if parts, _ := role.Value.([]any); len(parts) == 0 || parts[0] != "master" {
				continue
			}
		}
		if err := fn(n); err != nil {
			return err
		}
	}
	return ctx.Err()
}

type rueidisNode struct {
	conn   *rueidisConn
	client rueidis.Client
	addr   string
}

func (n *rueidisNode) Addr() string { return n.addr }

func (n *rueidisNode) Do(ctx context.Context, args ...string) Reply {
	return n.conn.one(ctx, func(ctx context.Context) Reply {
		return reply(n.client.Do(ctx, n.client.B().Arbitrary(args...).Build()))
	})
}

// reply converts rueidis's answer. An error inside of an array stays there as an error value; no
// script of hasp makes one.
func reply(r rueidis.RedisResult) Reply {
	v, err := r.ToAny()
	if rueidis.IsRedisNil(err) {
		return Reply{}
	}
	if err != nil {
		return Reply{Err: convertError(err)}
	}
	return Reply{Value: v}
}

func convertError(err error) error {
	if e, ok := rueidis.IsRedisErr(err); ok {
		return ServerError(e.Error())
	}
	switch {
	case errors.Is(err, net.ErrClosed):
		return fmt.Errorf("the connection was given up, since the server did not answer (%w)", err)
	case errors.Is(err, rueidis.ErrNoSlot):
		return fmt.Errorf("%w: does each master of the cluster announce its address (not \"?\")?", err)
	}
	return err
}
