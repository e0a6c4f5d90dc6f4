package redisconn

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/rueidis"
)

// idleConn is a second connection, for a request that finds no other under way. On it rueidis
// writes and reads on the caller's goroutine, and the request takes half the time that it
// takes through the shared connection, where two more goroutines hand it on. A request that finds
// it taken, or others on the shared one, shares: there the requests of many are pipelined,
// which is then the faster way.
//
// rueidis cannot be cancelled in this mode, so we cancel the connection. That costs the
// next user a dial, and is rare: only a context that ends within a round trip does it.
type idleConn struct {
	mu     sync.Mutex // held during a request
	client rueidis.Client
	dialer *dialer
}

// openIdleConn connects to a single server. The error of the first connection is ignored: the
// shared one has the same, and reports it.
func openIdleConn(cfg Config) *idleConn {
	s := &idleConn{dialer: newDialer(func() {})}
	o := cfg.options(s.dialer)
	o.ForceSingleClient, o.AlwaysPipelining = true, false
	s.client, _ = rueidis.NewClient(o)
	if s.client == nil {
		return nil
	}
	return s
}

// eval runs a script; the caller has mu.
func (s *idleConn) eval(ctx context.Context, script *Script, call Call) Reply {
	if err := ctx.Err(); err != nil {
		return Reply{Err: err}
	}
	if ctx.Done() != nil {
		cancelled := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			s.dialer.closeAll()
			close(cancelled)
		})
		defer func() {
			if !stop() {
				<-cancelled // or it would close the next caller's connection
			}
		}()
	}
	r := evalOnce(context.Background(), s.client, script, call)
	if errors.Is(r.Err, errEnded) && ctx.Err() == nil {
		// The one before us was cancelled just when it had its answer, or Redial has closed
		// all connections: rueidis learns of it by this request, of which nothing was sent.
		// (A whole command was not: a server does nothing about a part of one.)
		r = evalOnce(context.Background(), s.client, script, call)
	}
	if r.Err != nil && Answered(r.Err) == "" && ctx.Err() != nil {
		r.Err = ctx.Err()
	}
	return r
}
