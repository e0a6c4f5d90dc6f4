package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp/driver"
)

// renewal is a stream of etcd's for keeping leases alive. It is kept from one renewal to
// the next since, with user and password, clientv3 asks for a token for every stream,
// which costs the server a bcrypt comparison.
type renewal struct {
	stream pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
	ended  bool
}

// KeepAlive renews the lease in one round trip.
//
// Answers carry no number, so an answer that comes after we gave up on it could be taken
// for that of the next renewal, and trust would be counted from the wrong moment. After
// any failure the stream is therefore abandoned, and with it all answers that still come.
//
// `etcd grpc-proxy` renews by itself every third of the TTL, for as long as a stream of ours is
// open, and answers us with the next answer that it gets. On a new stream it begins at once, or
// nearly. So behind a proxy each renewal has a new stream; on one that is kept we would wait for as
// long as a third of the TTL, or be answered with a renewal that was made before we asked. Where we
// have given up on one, that may still be the answer which we get: then trust counts from the first
// that was not answered.
//
// That the lease is renewed does not say that the keys are there: for that see keywatch.go.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	began := time.Now()
	s.mu.Lock()
	r := s.renew
	s.renew = nil
	if s.unanswered.IsZero() {
		s.unanswered = began
	}
	s.mu.Unlock()
	var resp *pb.LeaseKeepAliveResponse
	err := pastLearners(func() (err error) {
		if r == nil || r.ended {
			r = &renewal{}
		}
		resp, err = r.once(ctx, s)
		return err
	})
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.backend.connections.closeSilent(began)
		}
		return 0, explain(ctx, "renew the lease", err)
	}
	s.mu.Lock()
	ttl := time.Duration(resp.TTL) * time.Second
	if s.proxied.Load() {
		ttl -= began.Sub(s.unanswered)
	} else if s.renew == nil {
		s.renew, r = r, nil
	}
	s.unanswered = time.Time{}
	s.mu.Unlock()
	if r != nil {
		r.cancel()
	}
	if resp.TTL <= 0 {
		err := fmt.Errorf("%w: etcd: %w", driver.ErrGone, rpctypes.ErrLeaseNotFound)
		s.gone("", err)
		return 0, err
	}
	s.watches.renewed()
	s.retryReleases()
	return ttl, nil
}

// once renews, and ends the stream if that fails.
func (r *renewal) once(ctx context.Context, s *session) (resp *pb.LeaseKeepAliveResponse, err error) {
	var open context.Context
	if r.cancel == nil {
		open, r.cancel = context.WithCancel(s.ctx)
	}
	stop := context.AfterFunc(ctx, r.cancel) // not the stream's context: it lives longer
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			r.ended = true
			r.cancel()
		}
	}()
	if r.stream == nil {
		// A member that has lost its leader cannot renew; it shall say so at once.
		if r.stream, err = s.backend.lease.LeaseKeepAlive(clientv3.WithRequireLeader(open), s.backend.call...); err != nil {
			return nil, err
		}
		if !s.proxied.Load() {
			if resp, err = r.ask(0); err != nil {
				return nil, err
			}
			s.proxied.Store(resp.TTL < 0)
		}
	}
	return r.ask(s.lease)
}

// ask renews a lease. etcd says of one that is none, as 0, that 0 seconds are left; a proxy says
// what it is told when it asks for the time left of one that it cannot renew: -1.
func (r *renewal) ask(lease int64) (*pb.LeaseKeepAliveResponse, error) {
	if err := r.stream.Send(&pb.LeaseKeepAliveRequest{ID: lease}); err != nil {
		// Send tells of a broken stream with io.EOF, and Recv says why.
		_, why := r.stream.Recv()
		return nil, why
	}
	return r.stream.Recv()
}
