package etcdlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// scriptedLeases answers renewals after a while, in the way of a member or of a proxy.
type scriptedLeases struct {
	pb.LeaseClient
	takes   *time.Duration
	unknown int64 // what is said to be left of a lease that is none
	streams int
}

type scriptedStream struct {
	pb.Lease_LeaseKeepAliveClient
	ctx    context.Context
	leases *scriptedLeases
	asked  int64
}

func (s *scriptedLeases) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	s.streams++
	return &scriptedStream{ctx: ctx, leases: s}, nil
}

func (s *scriptedStream) Send(r *pb.LeaseKeepAliveRequest) error {
	s.asked = r.ID
	return nil
}

func (s *scriptedStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	if s.asked == 0 {
		return &pb.LeaseKeepAliveResponse{TTL: s.leases.unknown}, nil
	}
	select {
	case <-time.After(*s.leases.takes):
		return &pb.LeaseKeepAliveResponse{ID: s.asked, TTL: 10}, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// S2: trust begins with the request that the answer is to. A proxy may answer a renewal with the
// answer to the one before, if that was given up; a member never does, since the stream was
// given up with it.
func TestTrustCountsFromTheFirstUnanswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unknown int64
		lost    time.Duration // of the trust, after a renewal that was given up
		streams int
	}{
		"member": {0, 0, 2},
		"proxy":  {-1, 3 * time.Second, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				takes := time.Millisecond
				leases := &scriptedLeases{takes: &takes, unknown: c.unknown}
				s := &session{backend: &Backend{lease: leases}, lease: 7}
				s.watches.session = s
				s.ctx, s.stop = context.WithCancel(context.Background())
				defer s.stop()
				renew := func(want time.Duration) {
					t.Helper()
					ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
					defer cancel()
					if got, err := s.KeepAlive(ctx); err != nil || got != want {
						t.Errorf("renewed for %s, %v; want %s", got, err, want)
					}
				}
				renew(10 * time.Second)
				renew(10 * time.Second)
				takes = time.Hour
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				if _, err := s.KeepAlive(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("no answer: %v", err)
				}
				takes = time.Millisecond
				renew(10*time.Second - c.lost)
				renew(10 * time.Second)
				if leases.streams != c.streams {
					t.Errorf("%d streams, want %d", leases.streams, c.streams)
				}
			})
		})
	}
}
