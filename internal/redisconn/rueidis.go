package redisconn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// rueidisConn speaks through redis/rueidis: requests of all goroutines share one
// connection and travel together, and on RESP3 the pushed messages come back over it.
type rueidisConn struct {
	client   rueidis.Client
	solo     *solo   // nil unless this is a single server, to which we connected ourselves
	dialer   *dialer // nil if the client is the user's
	label    string
	topology Topology

	// steady says that the last thing known of the connection was an answer, and inline
	// how many requests run on their caller's goroutine. See run.
	steady atomic.Bool
	inline atomic.Int32
}

// mostInline stays under the number of requests that rueidis can have on the way (ringScale):
// it makes a request wait for a free place without looking at its context.
const (
	ringScale  = 9 // 512 places
	mostInline = 256
)

// FromRueidis makes a Conn of a user's client, which stays open when the Conn is closed.
// rueidis by itself repeats only what it knows to be read-only; scripts are not.
func FromRueidis(client rueidis.Client) Conn {
	nodes := slices.Sorted(maps.Keys(client.Nodes()))
	c := &rueidisConn{client: client, topology: topologyOf(client)}
	if len(nodes) > 0 {
		c.label = "redis://" + nodes[0]
	}
	return c
}

// Open connects. ctx bounds the connecting only.
func Open(ctx context.Context, cfg Config) (Conn, error) {
	c := &rueidisConn{label: cfg.Label}
	c.dialer = newDialer(func() { c.steady.Store(false) })
	type opened struct {
		client rueidis.Client
		solo   *solo
		err    error
	}
	// NewClient knows no context. Left alone, it ends with the dial time-out.
	done := make(chan opened, 1)
	go func() {
		o := opened{}
		o.client, o.err = rueidis.NewClient(cfg.options(c.dialer))
		if o.err == nil && topologyOf(o.client) == Single {
			o.solo = openSolo(cfg)
		}
		done <- o
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, fmt.Errorf("%s: %w", cfg.Label, converted(o.err))
		}
		c.client, c.solo, c.topology = o.client, o.solo, topologyOf(o.client)
		return c, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				(&rueidisConn{client: o.client, solo: o.solo, dialer: c.dialer}).Close()
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

// withoutDeadline hides the deadline: with one, rueidis would read the answer on the
// caller's goroutine, where cancelling cannot reach it. The end of ctx still does.
type withoutDeadline struct{ context.Context }

func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// run makes a request that must not outlast ctx. rueidis looks at ctx once the request is
// on its way; it does not while somebody else's dial or handshake is under way, nor while
// its ring is full. On a connection that works neither happens, and the request runs on
// its caller's goroutine, which is a hand-over less in each direction. In every other case
// it runs on one of its own, and is abandoned there.
func (c *rueidisConn) run(ctx context.Context, fn func(context.Context) []Reply) []Reply {
	if err := ctx.Err(); err != nil {
		return []Reply{{Err: err}}
	}
	if c.steady.Load() {
		defer c.inline.Add(-1)
		if c.inline.Add(1) <= mostInline {
			return c.judge(fn(withoutDeadline{ctx}))
		}
	}
	done := make(chan []Reply, 1)
	go func() { done <- c.judge(fn(withoutDeadline{ctx})) }()
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
		return []Reply{{Err: ctx.Err()}}
	}
}

func (c *rueidisConn) judge(rs []Reply) []Reply {
	last := rs[len(rs)-1].Err
	if ok := last == nil || Answered(last) != ""; ok != c.steady.Load() {
		c.steady.Store(ok)
	}
	return rs
}

func (c *rueidisConn) Eval(ctx context.Context, s *Script, call Call, replicas int) Reply {
	if c.solo != nil && replicas == 0 && c.solo.mu.TryLock() {
		defer c.solo.mu.Unlock()
		return c.solo.eval(ctx, s, call)
	}
	return c.run(ctx, func(ctx context.Context) []Reply {
		if replicas > 0 {
			return []Reply{c.evalReplicated(ctx, s, call, replicas)}
		}
		return []Reply{evalOnce(ctx, c.client, s, call)}
	})[0]
}

// evalOnce sends the hash, and the text if that was refused as unknown.
func evalOnce(ctx context.Context, client rueidis.CommandClient, s *Script, call Call) Reply {
	r := reply(client.Do(ctx, evalsha(client, s, call)))
	if Answered(r.Err) == "NOSCRIPT" {
		r = reply(client.Do(ctx, eval(client, s, call)))
	}
	return r
}

// evalReplicated needs a connection of its own: WAIT counts the writes of its connection,
// and holds up whatever comes behind it.
func (c *rueidisConn) evalReplicated(ctx context.Context, s *Script, call Call, replicas int) Reply {
	d, release := c.client.Dedicate()
	defer release()
	r := evalOnce(ctx, d, s, call)
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
	return client.B().Evalsha().Sha1(s.SHA1).Numkeys(int64(len(call.Keys))).Key(call.Keys...).Arg(call.Args...).Build()
}

func eval(client rueidis.CommandClient, s *Script, call Call) rueidis.Completed {
	return client.B().Eval().Script(s.Text).Numkeys(int64(len(call.Keys))).Key(call.Keys...).Arg(call.Args...).Build()
}

// pipelined is how many scripts are sent together. rueidis opens another connection for
// longer flights.
const pipelined = 1000

func (c *rueidisConn) EvalAll(ctx context.Context, s *Script, calls []Call) []Reply {
	all := make([]Reply, 0, len(calls))
	for flight := range slices.Chunk(calls, pipelined) {
		rs := c.run(ctx, func(ctx context.Context) []Reply { return c.evalFlight(ctx, s, flight) })
		for i := range flight {
			all = append(all, rs[min(i, len(rs)-1)]) // an abandoned flight has one reply for all
		}
	}
	return all
}

func (c *rueidisConn) evalFlight(ctx context.Context, s *Script, calls []Call) []Reply {
	cmds := make(rueidis.Commands, len(calls))
	for i, call := range calls {
		cmds[i] = evalsha(c.client, s, call)
	}
	rs := make([]Reply, len(calls))
	for i, r := range c.client.DoMulti(ctx, cmds...) {
		rs[i] = reply(r)
		if Answered(rs[i].Err) == "NOSCRIPT" { // this once; the next ones know the script
			rs[i] = reply(c.client.Do(ctx, eval(c.client, s, calls[i])))
		}
	}
	return rs
}

func (c *rueidisConn) Subscribe(ctx context.Context, channel string, up func(), message func(string)) error {
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" {
			up()
		}
	})
	cmd := c.client.B().Subscribe().Channel(channel).Build()
	receive := func(m rueidis.PubSubMessage) { message(m.Message) }
	var err error
	if c.topology == Cluster {
		// Any node passes on what is published at another. A connection of its own, because
		// UNSUBSCRIBE could not be sent to that node again.
		err = c.client.Dedicated(func(d rueidis.DedicatedClient) error { return d.Receive(hooked, cmd, receive) })
	} else {
		err = c.client.Receive(hooked, cmd, receive)
		if ctx.Err() != nil {
			c.unsubscribe(channel)
		}
	}
	if err == nil {
		err = errors.New("the server ended the subscription")
	}
	return converted(err)
}

// unsubscribe is for the connection that lives on. If it fails, that connection has ended.
func (c *rueidisConn) unsubscribe(channel string) {
	ctx, cancel := context.WithTimeout(context.Background(), WaitBound)
	defer cancel()
	c.run(ctx, func(ctx context.Context) []Reply {
		return []Reply{reply(c.client.Do(ctx, c.client.B().Unsubscribe().Channel(channel).Build()))}
	})
}

func (c *rueidisConn) Redial() {
	if c.dialer != nil {
		c.dialer.closeAll()
	}
	if c.solo != nil {
		c.solo.dialer.closeAll()
	}
}

func (c *rueidisConn) Close() {
	if c.dialer == nil {
		return
	}
	// rueidis says goodbye and waits up to a second for the answer of a silent server.
	go c.client.Close()
	if c.solo != nil {
		go c.solo.client.Close()
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
	return n.conn.run(ctx, func(ctx context.Context) []Reply {
		return []Reply{reply(n.client.Do(ctx, n.client.B().Arbitrary(args...).Build()))}
	})[0]
}

// reply takes an answer out of rueidis's form. An error inside of an array stays there as
// an error value; none of our scripts makes one.
func reply(r rueidis.RedisResult) Reply {
	v, err := r.ToAny()
	if rueidis.IsRedisNil(err) {
		return Reply{}
	}
	if err != nil {
		return Reply{Err: converted(err)}
	}
	return Reply{Value: v}
}

func converted(err error) error {
	if e, ok := rueidis.IsRedisErr(err); ok {
		return ServerError(e.Error())
	}
	return err
}
