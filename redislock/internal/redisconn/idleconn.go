package redisconn

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/rueidis"
)

// idleConn is a second connection, for a request while no other is under way. On it rueidis
// writes and reads on the caller's goroutine, and the request takes half the time that it takes
// on the shared connection, where two more goroutines pass it on. A request uses the shared
// connection if this one is busy or others are on the shared one: requests are pipelined there,
// which is then faster.
//
// rueidis cannot be cancelled in this mode, so we close the connection. That costs the next
// request a dial, and is rare: it needs a context that ends within a round trip.
type idleConn struct {
	mu     sync.Mutex // held during a request
	client rueidis.Client
	dialer *dialer

	processes *processes // of the shared connection: it is the same server
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
	r := evalOnce(context.Background(), s.client, s.processes, script, call)
	if errors.Is(r.Err, errClosedByUs) && ctx.Err() == nil {
		// The request before was cancelled just when it had its answer, or Redial has closed
		// all connections: rueidis learns that from this request, which was not sent. (At most
		// a part of the command was, with which a server does nothing.)
		r = evalOnce(context.Background(), s.client, s.processes, script, call)
	}
	if r.Err != nil && Answered(r.Err) == "" && ctx.Err() != nil {
		r.Err = ctx.Err()
	}
	return r
}
