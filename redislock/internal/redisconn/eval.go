package redisconn

import (
	"context"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

func (c *rueidisConn) Eval(ctx context.Context, s *Script, call Call, replicas int) Reply {
	if replicas > 0 {
		return c.EvalAll(ctx, s, []Call{call}, replicas)[0]
	}
	send := func() Reply {
		return c.one(ctx, func(ctx context.Context) Reply {
			r := reply(c.client.Do(ctx, command(c.client, s, call, false)))
			if Answered(r.Err) == "NOSCRIPT" {
				r = reply(c.client.Do(ctx, command(c.client, s, call, true)))
			}
			return r
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

// maxPipeline is how many scripts are sent together. rueidis opens another connection for longer
// pipelines.
const maxPipeline = 1000

func (c *rueidisConn) EvalAll(ctx context.Context, s *Script, calls []Call, replicas int) []Reply {
	all := make([]Reply, 0, len(calls))
	for batch := range slices.Chunk(calls, maxPipeline) {
		send := func() []Reply {
			if replicas > 0 {
				return c.evalReplicated(ctx, s, batch, replicas)
			}
			return run(ctx, c, func(ctx context.Context) ([]Reply, error) {
				rs := ByHash(batch, func(calls []Call, text bool) []Reply {
					return replies(c.client.DoMulti(ctx, commands(c.client, s, calls, text)...))
				})
				return rs, rs[len(rs)-1].Err
			}, func(err error) []Reply { return failed(batch, err) })
		}
		rs := send()
		if c.demoted(rs[len(rs)-1]) {
			rs = send()
		}
		all = append(all, rs...)
	}
	return all
}

func failed(calls []Call, err error) []Reply { return slices.Repeat([]Reply{{Err: err}}, len(calls)) }

// command runs a script by its hash, or by its text.
func command(client rueidis.CommandClient, s *Script, call Call, text bool) rueidis.Completed {
	n := int64(len(call.Keys))
	if text {
		return client.B().Eval().Script(s.Text()).Numkeys(n).Key(call.Keys...).Arg(call.Args...).Build()
	}
	return client.B().Evalsha().Sha1(s.SHA1()).Numkeys(n).Key(call.Keys...).Arg(call.Args...).Build()
}

func commands(client rueidis.CommandClient, s *Script, calls []Call, text bool) rueidis.Commands {
	cmds := make(rueidis.Commands, len(calls))
	for i, call := range calls {
		cmds[i] = command(client, s, call, text)
	}
	return cmds
}

func replies(results []rueidis.RedisResult) []Reply {
	rs := make([]Reply, len(results))
	for i, r := range results {
		rs[i] = reply(r)
	}
	return rs
}

// ByHash sends the hash of a script for each call, and the text for those that were refused as
// unknown.
func ByHash(calls []Call, send func(calls []Call, text bool) []Reply) []Reply {
	rs := send(calls, false)
	var which []int
	var unknown []Call
	for i, r := range rs {
		if Answered(r.Err) == "NOSCRIPT" {
			which, unknown = append(which, i), append(unknown, calls[i])
		}
	}
	if len(unknown) > 0 {
		for i, r := range send(unknown, true) {
			rs[which[i]] = r
		}
	}
	return rs
}
