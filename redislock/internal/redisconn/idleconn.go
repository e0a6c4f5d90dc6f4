package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// idleConn is a connection for a request while no other is under way. On it rueidis
// writes and reads on the caller's goroutine, and the request takes half the time that it takes
// on the shared connection, where two more goroutines pass it on. A request uses the shared
// connection if this one is busy or others are on the shared one: requests are pipelined there,
// which is then faster. So a client that never makes two requests at once, and listens to nothing,
// has this connection alone.
//
// rueidis cannot be cancelled in this mode, so we close the connection. That costs the next
// request a dial, and is rare: it needs a context that ends within a round trip.
type idleConn struct {
	turn   chan struct{} // held during a request; of size 1
	client rueidis.Client
	dialer *dialer
}

// openIdleConn connects to a single server. nil without an error is a node of a cluster.
func openIdleConn(cfg Config) (*idleConn, error) {
	s := &idleConn{turn: make(chan struct{}, 1), dialer: newDialer(func() {})}
	s.dialer.secure = cfg.Secure
	o := cfg.options(s.dialer)
	o.ForceSingleClient, o.AlwaysPipelining = true, false
	// No ping: one that met a request would make rueidis use this connection as it uses the shared
	// one. A request finds a silent server by its own time-out, the kernel a dead path, and
	// readable a closed connection.
	if s.dialer.idle = findsStale; findsStale {
		o.Dialer.KeepAlive = -1
	}
	client, err := rueidis.NewClient(o)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return nil, err
	}
	s.client = client
	err = client.Do(context.Background(), client.B().ClusterInfo().Build()).Error()
	if refusal, ok := rueidis.IsRedisErr(err); ok && noCluster(refusal.Error()) {
		return s, nil
	}
	go client.Close()
	return nil, err
}

// noCluster reports that a server answers with this error because it is no node of a cluster, or,
// as a hosted server may do, forbids the question.
func noCluster(refusal string) bool {
	return strings.Contains(strings.ToUpper(refusal), "CLUSTER") || strings.Contains(refusal, "command is not allowed")
}

// onDemand makes a client that connects only for Dedicate. rueidis dials the connection for
// requests when the client is made, and at each request without one: this client makes no request.
func (cfg Config) onDemand(d *dialer) rueidis.Client {
	var made atomic.Bool
	o := cfg.options(d)
	o.ForceSingleClient = true
	o.DialCtxFn = func(ctx context.Context, addr string, nd *net.Dialer, tc *tls.Config) (net.Conn, error) {
		if !made.Load() {
			return nil, errNotConnected
		}
		return d.dial(ctx, addr, nd, tc)
	}
	client, _ := rueidis.NewClient(o) // with the error of our dial
	made.Store(true)
	return client
}

// wait makes a request when it is its turn.
func (s *idleConn) wait(ctx context.Context, fn request) Reply {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
		return s.do(ctx, fn)
	case <-ctx.Done():
		return Reply{Err: ctx.Err()}
	}
}

// do makes a request; the caller has the turn.
func (s *idleConn) do(ctx context.Context, fn request) Reply {
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
	r := fn(context.Background(), s.client)
	if errors.Is(r.Err, errClosedByUs) && ctx.Err() == nil {
		// The request before was cancelled just when it had its answer, or Redial has closed
		// all connections: rueidis learns that from this request, which was not sent. (At most
		// a part of the command was, with which a server does nothing.)
		r = fn(context.Background(), s.client)
	}
	if r.Err != nil && Answered(r.Err) == "" && ctx.Err() != nil {
		r.Err = ctx.Err()
	}
	return r
}
