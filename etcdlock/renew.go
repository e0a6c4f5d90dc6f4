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
}

// KeepAlive renews the lease in one round trip.
//
// Answers carry no number, so an answer that comes after we gave up on it could be taken
// for that of the next renewal, and trust would be counted from the wrong moment. After
// any failure the stream is therefore abandoned, and with it all answers that still come.
//
// That the lease is renewed does not say that the keys are there: for that see keywatch.go.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.watch.probe()
	s.mu.Lock()
	r := s.renew
	s.renew = nil
	s.mu.Unlock()
	if r == nil {
		r = &renewal{}
	}
	began := time.Now()
	resp, err := r.once(ctx, s)
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.backend.connections.closeSilent(began)
		}
		return 0, explain(ctx, "renew the lease", err)
	}
	s.mu.Lock()
	if s.renew == nil {
		s.renew, r = r, nil
	}
	s.mu.Unlock()
	if r != nil {
		r.cancel()
	}
	if resp.TTL <= 0 {
		err := fmt.Errorf("%w: etcd: %w", driver.ErrGone, rpctypes.ErrLeaseNotFound)
		s.gone("", err)
		return 0, err
	}
	s.retryReleases()
	return time.Duration(resp.TTL) * time.Second, nil
}

// once renews, and ends the stream if that fails.
func (r *renewal) once(ctx context.Context, s *session) (resp *pb.LeaseKeepAliveResponse, err error) {
	var open context.Context
	if r.cancel == nil {
		open, r.cancel = context.WithCancel(s.ctx)
	}
	stop := context.AfterFunc(ctx, r.cancel) // a stream lives longer than one renewal, so ctx cannot be its context
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			r.cancel()
		}
	}()
	if r.stream == nil {
		// A member that has lost its leader cannot renew; it shall say so at once.
		if r.stream, err = s.backend.lease.LeaseKeepAlive(clientv3.WithRequireLeader(open), s.backend.call...); err != nil {
			return nil, err
		}
	}
	if err := r.stream.Send(&pb.LeaseKeepAliveRequest{ID: s.lease}); err != nil {
		// Send tells of a broken stream with io.EOF, and Recv says why.
		_, why := r.stream.Recv()
		return nil, why
	}
	return r.stream.Recv()
}
