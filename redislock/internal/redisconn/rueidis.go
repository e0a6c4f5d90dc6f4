package redisconn

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// rueidisConn uses redis/rueidis: the requests of all goroutines share one connection and are
// pipelined.
type rueidisConn struct {
	client    rueidis.Client
	pubsub    *pubsub
	idle      *idleConn // nil unless Open has connected to a single server
	dialer    *dialer   // nil if the client is the user's
	label     string
	topology  Topology
	slotNodes slotNodes  // the nodes of a cluster's slots
	processes *processes // nil in a cluster, which has several

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
	c := &rueidisConn{client: client, topology: topologyOf(client), processes: newProcesses(client)}
	c.pubsub = newPubsub(client, c.processes.connected)
	if len(nodes) > 0 {
		c.label = "redis://" + nodes[0]
	}
	return c
}

// Open connects. ctx bounds the connecting only.
func Open(ctx context.Context, cfg Config) (Conn, error) {
	c := &rueidisConn{label: cfg.Label}
	c.dialer = newDialer(func() { c.healthy.Store(false) })
	type opened struct {
		client rueidis.Client
		idle   *idleConn
		err    error
	}
	// NewClient takes no context. An abandoned call ends with the dial time-out.
	done := make(chan opened, 1)
	go func() {
		o := opened{}
		o.client, o.err = rueidis.NewClient(cfg.options(c.dialer))
		if o.err == nil && topologyOf(o.client) == Single {
			o.idle = openIdleConn(cfg)
		}
		done <- o
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, fmt.Errorf("%s: %w", cfg.Label, convertError(o.err))
		}
		c.client, c.idle, c.topology = o.client, o.idle, topologyOf(o.client)
		c.processes = newProcesses(o.client)
		if c.idle != nil {
			c.idle.processes = c.processes
		}
		c.pubsub = newPubsub(o.client, c.processes.connected)
		return c, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				(&rueidisConn{client: o.client, idle: o.idle, dialer: c.dialer}).Close()
			}
		}()
		return nil, fmt.Errorf("%s: connecting: %w", cfg.Label, ctx.Err())
	}
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
	done := make(chan T, 1)
	go func() {
		defer c.inFlight.Add(-1)
		done <- do()
	}()
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

func (c *rueidisConn) Eval(ctx context.Context, s *Script, call Call, replicas int) Reply {
	// With other requests under way the shared connection is faster: it pipelines them.
	if c.idle != nil && replicas == 0 && c.inFlight.Load() == 0 && c.idle.mu.TryLock() {
		defer c.idle.mu.Unlock()
		return c.idle.eval(ctx, s, call)
	}
	return c.one(ctx, func(ctx context.Context) Reply {
		if replicas > 0 {
			return c.evalReplicated(ctx, s, call, replicas)
		}
		return evalOnce(ctx, c.client, c.processes, s, call)
	})
}

// evalOnce sends the hash, and the text if that was refused as unknown. p may be nil.
func evalOnce(ctx context.Context, client rueidis.CommandClient, p *processes, s *Script, call Call) Reply {
	if now, v := p.variant(s); v != nil {
		r := reply(client.Do(ctx, evalsha(client, v, call)))
		if Answered(r.Err) != "NOSCRIPT" {
			return r
		}
		p.gone(now)
	}
	r := reply(client.Do(ctx, evalsha(client, s, call)))
	if Answered(r.Err) == "NOSCRIPT" {
		r = reply(client.Do(ctx, eval(client, s, call)))
	}
	return r
}

// evalReplicated needs a dedicated connection: WAIT counts the writes of its connection, and
// blocks the requests behind it.
func (c *rueidisConn) evalReplicated(ctx context.Context, s *Script, call Call, replicas int) Reply {
	d, release := c.client.Dedicate()
	defer release()
	r := evalOnce(ctx, d, c.processes, s, call)
	if r.Err != nil {
		return r
	}
	ack := reply(d.Do(ctx, d.B().Arbitrary("WAIT", strconv.Itoa(replicas), strconv.Itoa(int(WaitBound/time.Millisecond))).Build()))
	if n, _ := ack.Value.(int64); ack.Err == nil && n < int64(replicas) {
		ack.Err = fmt.Errorf("%d of %d replicas have it after %s", n, replicas, WaitBound)
	}
	if ack.Err != nil {
		return Reply{Err: fmt.Errorf("replication is not confirmed: %w", ack.Err)}
	}
	return r
}

// WaitBound is how long a server waits for its replicas.
const WaitBound = time.Second

func evalsha(client rueidis.CommandClient, s *Script, call Call) rueidis.Completed {
	return client.B().Evalsha().Sha1(s.SHA1()).Numkeys(int64(len(call.Keys))).Key(call.Keys...).Arg(call.Args...).Build()
}

func eval(client rueidis.CommandClient, s *Script, call Call) rueidis.Completed {
	return client.B().Eval().Script(s.Text()).Numkeys(int64(len(call.Keys))).Key(call.Keys...).Arg(call.Args...).Build()
}

// maxPipeline is how many scripts are sent together. rueidis opens another connection for longer
// pipelines.
const maxPipeline = 1000

func (c *rueidisConn) EvalAll(ctx context.Context, s *Script, calls []Call) []Reply {
	all := make([]Reply, 0, len(calls))
	for batch := range slices.Chunk(calls, maxPipeline) {
		all = append(all, run(ctx, c, func(ctx context.Context) ([]Reply, error) {
			rs := c.evalPipeline(ctx, s, batch)
			return rs, rs[len(rs)-1].Err
		}, func(err error) []Reply { return slices.Repeat([]Reply{{Err: err}}, len(batch)) })...)
	}
	return all
}

func (c *rueidisConn) evalPipeline(ctx context.Context, s *Script, calls []Call) []Reply {
	cmds := make(rueidis.Commands, len(calls))
	for i, call := range calls {
		cmds[i] = evalsha(c.client, s, call)
	}
	rs := make([]Reply, len(calls))
	for i, r := range c.client.DoMulti(ctx, cmds...) {
		rs[i] = reply(r)
		if Answered(rs[i].Err) == "NOSCRIPT" { // once: from then on the server knows the script
			rs[i] = reply(c.client.Do(ctx, eval(c.client, s, calls[i])))
		}
	}
	return rs
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

// slots asks the nodes one after the other which node has which slots, until one answers.
func (c *rueidisConn) slots(ctx context.Context) any {
	for _, client := range c.client.Nodes() {
		n := &rueidisNode{conn: c, client: client}
		asking, cancel := context.WithTimeout(ctx, slotsBound)
		r := n.Do(asking, "CLUSTER", "SLOTS")
		cancel()
		if r.Err == nil || ctx.Err() != nil {
			return r.Value
		}
	}
	return nil
}

func (c *rueidisConn) Redial(node string) {
	c.slotNodes.forget()
	if c.dialer != nil {
		c.dialer.close(node)
	}
	if c.idle != nil {
		c.idle.dialer.closeAll()
	}
}

func (c *rueidisConn) Close() {
	if c.dialer == nil {
		return
	}
	// rueidis sends QUIT and waits up to a second for the answer of a silent server.
	go c.client.Close()
	if c.idle != nil {
		go c.idle.client.Close()
	}
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
	return err
}
