package redisconn

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

func (c *rueidisConn) Eval(ctx context.Context, s *Script, call Call, replicas int) Reply {
	send := func() Reply {
		if replicas > 0 {
			return c.one(ctx, func(ctx context.Context, _ rueidis.CommandClient) Reply {
				return c.evalReplicated(ctx, s, call, replicas)
			})
		}
		return c.one(ctx, func(ctx context.Context, client rueidis.CommandClient) Reply {
			return evalOnce(ctx, client, s, call)
		})
	}
	r := send()
	if c.demoted(r) {
		// It has done nothing, so that asking again repeats nothing. The name may lead to another
		// server by now.
		r = send()
	}
	return r
}

// redialPause bounds how often connections are closed because a server is no master: where it stays
// so, each request would close those of all others.
const redialPause = time.Second

// demoted reports that the server is a replica now, and sees to it that the next request dials
// anew: a server that becomes a replica keeps its connections, and a client that keeps them, too,
// would never find the master that a fixed name leads to since.
func (c *rueidisConn) demoted(r Reply) bool {
	if !Replica(r.Err) || c.topology == Cluster || c.dialer == nil {
		return false
	}
	now := time.Now().UnixNano()
	if last := c.redialled.Load(); now-last > int64(redialPause) && c.redialled.CompareAndSwap(last, now) {
		c.Redial("")
	}
	return true
}

// evalOnce sends the hash, and the text if that was refused as unknown.
func evalOnce(ctx context.Context, client rueidis.CommandClient, s *Script, call Call) Reply {
	r := reply(client.Do(ctx, evalsha(client, s, call)))
	if Answered(r.Err) == "NOSCRIPT" {
		r = reply(client.Do(ctx, eval(client, s, call)))
	}
	return r
}

// evalReplicated needs a dedicated connection: WAIT counts the writes of its connection, and
// blocks the requests behind it.
func (c *rueidisConn) evalReplicated(ctx context.Context, s *Script, call Call, replicas int) Reply {
	d := c.waiting.get(c.client)
	ended := false
	defer func() { c.waiting.put(d, ended) }()
	r := evalOnce(ctx, d, s, call)
	if r.Err != nil {
		ended = Answered(r.Err) != ""
		return r
	}
	ack := reply(d.Do(ctx, d.B().Arbitrary("WAIT", strconv.Itoa(replicas), strconv.Itoa(int(WaitBound/time.Millisecond))).Build()))
	ended = ack.Err == nil || Answered(ack.Err) != ""
	if n, _ := ack.Value.(int64); ack.Err == nil && n < int64(replicas) {
		ack.Err = fmt.Errorf("%d of %d replicas have it after %s", n, replicas, WaitBound)
	}
	if ack.Err != nil {
		return Reply{Err: Unconfirmed(ack.Err)}
	}
	return r
}

// waitConns are connections for requests that wait for replicas. They are not given back to
// rueidis, which would send UNSUBSCRIBE over each: see pubsub.
type waitConns struct {
	mu     sync.Mutex
	idle   []rueidis.DedicatedClient
	closed bool
}

// mostIdle bounds the connections that are kept.
const mostIdle = 16

func (w *waitConns) get(client rueidis.Client) rueidis.DedicatedClient {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.idle); n > 0 {
		d := w.idle[n-1]
		w.idle = w.idle[:n-1]
		return d
	}
	d, _ := client.Dedicate() // Close gives it back
	return d
}

// put takes a connection back, and closes one on which a request has not ended.
func (w *waitConns) put(d rueidis.DedicatedClient, ended bool) {
	w.mu.Lock()
	keep := ended && !w.closed && len(w.idle) < mostIdle
	if keep {
		w.idle = append(w.idle, d)
	}
	w.mu.Unlock()
	if !keep {
		d.Close()
	}
}

// drop closes those that are idle. It is called when any connection has ended: it may be one of
// them, which the next request would find out as an unknown outcome.
func (w *waitConns) drop() {
	w.mu.Lock()
	all := w.idle
	w.idle = nil
	w.mu.Unlock()
	for _, d := range all {
		go d.Close() // which waits for a second if the server is silent, and calls drop again
	}
}

func (w *waitConns) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.drop()
}

// Unconfirmed is the error of a request that the server has executed, and whose WAIT has failed. An
// answer to WAIT (no right to it, say) is told as text: taken for the answer to the request it
// would say that nothing was done, and the entry that the request has made would stay.
func Unconfirmed(err error) error {
	if Answered(err) != "" {
		return fmt.Errorf("replication is not confirmed: %v", err)
	}
	return fmt.Errorf("replication is not confirmed: %w", err)
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
		failed := func(err error) []Reply { return slices.Repeat([]Reply{{Err: err}}, len(batch)) }
		all = append(all, run(ctx, c, func(ctx context.Context) ([]Reply, error) {
			rs := evalPipeline(ctx, c.client, s, batch)
			if c.demoted(rs[len(rs)-1]) {
				rs = evalPipeline(ctx, c.client, s, batch)
			}
			return rs, rs[len(rs)-1].Err
		}, failed)...)
	}
	return all
}

func evalPipeline(ctx context.Context, client rueidis.CommandClient, s *Script, calls []Call) []Reply {
	cmds := make(rueidis.Commands, len(calls))
	for i, call := range calls {
		cmds[i] = evalsha(client, s, call)
	}
	rs := make([]Reply, len(calls))
	for i, r := range client.DoMulti(ctx, cmds...) {
		rs[i] = reply(r)
		if Answered(rs[i].Err) == "NOSCRIPT" { // once: from then on the server knows the script
			rs[i] = reply(client.Do(ctx, eval(client, s, calls[i])))
		}
	}
	return rs
}
