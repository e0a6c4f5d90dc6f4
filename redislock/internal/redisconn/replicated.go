package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// WaitBound is how long a server waits for its replicas.
const WaitBound = time.Second

// confirmBound is how long a request with WAIT has. rueidis does not ping a connection on which a
// request blocks.
const confirmBound = WaitBound + 2*silenceBound

// mostWaiting bounds the requests with WAIT that are under way at one node: each has a connection,
// of about 240 KB. rueidis's bound fails where contexts end: such a request is subtracted from the
// connections in use, and was never added.
const mostWaiting = 64

// evalReplicated sends scripts with a WAIT behind them in one call, which rueidis makes over one
// connection of its pool for requests that block: WAIT counts the writes of its connection, and
// keeps what is behind it waiting. One is enough for many scripts, and also if the last has written
// nothing: it counts the last write.
//
// In a cluster the call goes to the client of a node. The cluster's client would follow MOVED for a
// script alone, and keep what the old node has answered to WAIT.
//
// It has a separate goroutine, because rueidis's handshakes obey no cancellation.
func (c *rueidisConn) evalReplicated(ctx context.Context, s *Script, calls []Call, replicas int) []Reply {
	if err := ctx.Err(); err != nil {
		return failed(calls, err)
	}
	return Detached(ctx, func() []Reply {
		first := func(call Call) string { return c.NodeOf(ctx, call.Keys[0]) }
		return Redirect(calls, first, func(at Place, calls []Call) []Reply {
			return c.evalAt(ctx, at, s, calls, replicas)
		})
	}, func(err error) []Reply { return failed(calls, err) })
}

func (c *rueidisConn) evalAt(ctx context.Context, at Place, s *Script, calls []Call, replicas int) []Reply {
	v, _ := c.waiting.LoadOrStore(at.Addr, make(chan struct{}, mostWaiting))
	waiting := v.(chan struct{})
	select {
	case waiting <- struct{}{}:
		defer func() { <-waiting }()
	case <-ctx.Done():
		return failed(calls, ctx.Err())
	}
	bounded, cancel := context.WithTimeout(withoutDeadline{ctx}, confirmBound)
	defer cancel()
	client, err := c.nodeClient(bounded, at.Addr, calls[0].Keys[0])
	if err != nil {
		return failed(calls, err)
	}
	rs := ByHash(calls, func(calls []Call, text bool) []Reply {
		var all rueidis.Commands
		for _, cmd := range commands(client, s, calls, text) {
			if at.Asking {
				all = append(all, client.B().Asking().Build())
			}
			all = append(all, cmd)
		}
		each := len(all) / len(calls)
		all = append(all, client.B().Wait().Numreplicas(int64(replicas)).Timeout(WaitBound.Milliseconds()).Build())
		got := replies(client.DoMulti(bounded, all...))
		rs := make([]Reply, len(calls))
		for i := range rs {
			rs[i] = got[i*each+each-1].Confirmed(got[len(got)-1], replicas)
		}
		return rs
	})
	for i, r := range rs {
		switch code := Answered(r.Err); {
		case r.Err == nil || code != "" && code != "MOVED":
			continue
		case code == "" && ctx.Err() != nil: // a dial that was given up has its own error
			rs[i].Err = ctx.Err()
		case errors.Is(r.Err, context.DeadlineExceeded):
			rs[i].Err = fmt.Errorf("%w: no answer within %s", os.ErrDeadlineExceeded, confirmBound)
		}
		c.slotNodes.forget() // the node has been replaced, or may have
	}
	return rs
}

// nodeClient returns the client of a node. One that rueidis does not know yet it learns by
// following MOVED.
func (c *rueidisConn) nodeClient(ctx context.Context, addr, key string) (rueidis.Client, error) {
	if c.topology != Cluster {
		return c.client, nil
	}
	for range 2 {
		nodes := c.client.Nodes()
		if client := nodes[addr]; client != nil {
			return client, nil
		}
		for _, client := range nodes {
			if addr == "" {
				return client, nil // any: it names the right one
			}
		}
		_ = c.client.Do(ctx, c.client.B().Exists().Key(key).Build())
	}
	c.slotNodes.forget()
	return nil, fmt.Errorf("%w: the cluster's client does not know %s yet", ErrNotConnected, addr)
}

// Place is where a request is sent.
type Place struct {
	Addr   string // "" if there is no cluster, or the node is unknown
	Asking bool   // its slot is on the way there
}

// Redirect sends each call to the first node that is named for it, and those that were refused
// because their slot is elsewhere, or on its way there, to the node that the refusal names.
func Redirect(calls []Call, first func(Call) string, send func(Place, []Call) []Reply) []Reply {
	rs := make([]Reply, len(calls))
	todo := map[Place][]int{}
	for i, call := range calls {
		at := Place{Addr: first(call)}
		todo[at] = append(todo[at], i)
	}
	for hops := 0; hops < 3 && len(todo) > 0; hops++ { // the one that we know, MOVED's, ASK's
		next := map[Place][]int{}
		for at, which := range todo {
			some := make([]Call, len(which))
			for i, n := range which {
				some[i] = calls[n]
			}
			for i, r := range send(at, some) {
				rs[which[i]] = r
				if to, ok := redirected(r.Err, at.Addr); ok {
					next[to] = append(next[to], which[i])
				}
			}
		}
		todo = next
	}
	return rs
}

// redirected reads "MOVED SLOT HOST:PORT" and "ASK SLOT HOST:PORT", the answers of a node that has
// done nothing. Without a host it is the host of the node that was asked.
func redirected(err error, asked string) (to Place, ok bool) {
	code := Answered(err)
	if code != "MOVED" && code != "ASK" {
		return to, false
	}
	_, addr, _ := strings.Cut(strings.TrimPrefix(err.Error(), code+" "), " ")
	at := strings.LastIndexByte(addr, ':')
	if at < 0 {
		return to, false
	}
	host := strings.Trim(addr[:at], "[]")
	if host == "" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return Place{net.JoinHostPort(host, addr[at+1:]), code == "ASK"}, true
}

// Confirmed is the answer to a request, with the answer to the WAIT behind it. What was executed and
// not confirmed keeps its value. An error of WAIT (no right to it, say) is told as text: taken for
// the answer to the request it would say that nothing was done, and the entry that the request has
// made would stay.
func (r Reply) Confirmed(wait Reply, replicas int) Reply {
	n, _ := wait.Value.(int64)
	switch {
	case r.Err != nil:
	case Answered(wait.Err) != "":
		r.Err = fmt.Errorf("replication is not confirmed: %v", wait.Err)
	case wait.Err != nil:
		r.Err = fmt.Errorf("replication is not confirmed: %w", wait.Err)
	case n < int64(replicas):
		r.Err = fmt.Errorf("replication is not confirmed: %d of %d replicas have it after %s", n, replicas, WaitBound)
	}
	return r
}
