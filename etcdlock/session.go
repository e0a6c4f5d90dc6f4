package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp/driver"
)

// session is a lease of etcd's. Every entry's key is attached to it, so etcd removes them
// all together, when it runs out or is revoked.
type session struct {
	backend *Backend
	lease   int64
	bound   time.Duration // of one call
	gone    func(id string, err error)

	ctx    context.Context // ends with Close, and with it every goroutine of the session
	stop   context.CancelFunc
	closed sync.WaitGroup
	watch  *stream
	epoch  epoch
	vigil  vigil
	slots  slots
	owed   owed
	rev    atomic.Int64 // the latest that a transaction was answered with; see restored.go

	mu    sync.Mutex
	over  bool     // Close was called
	renew *renewal // a stream on which the next renewal may go, or nil
}

// Open takes a lease. What it returns is what etcd granted, which is more than asked for
// if the servers' election timeout is long.
//
// If the answer is lost, a lease without keys remains until it runs out: harmless.
func (b *Backend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if o.TTL < minTTL || o.TTL%time.Second != 0 {
		// Rounding would be a promise that the user did not ask for.
		return nil, 0, fmt.Errorf("%w: etcd counts TTLs in whole seconds from %s on, not %s", driver.ErrInvalid, minTTL, o.TTL)
	}
	resp, err := b.grant(ctx, o.TTL)
	if err != nil {
		return nil, 0, err
	}
	granted := time.Duration(resp.TTL) * time.Second
	s := &session{
		backend: b,
		lease:   resp.ID,
		bound:   min(max(granted/3, time.Second), patience),
		gone:    o.Gone,
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.watch = newStream(s)
	s.slots.lease = leaseName(resp.ID)
	s.epoch.key = b.prefix + "~epoch/" + s.slots.lease
	b.sessions.Store(s, nil)
	return s, granted, nil
}

// grant takes a lease of whole seconds.
func (b *Backend) grant(ctx context.Context, ttl time.Duration) (resp *pb.LeaseGrantResponse, err error) {
	err = b.attempt(ctx, patience, "grant a lease", func(ctx context.Context) (err error) {
		resp, err = b.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: int64(ttl / time.Second)}, b.call...)
		return err
	})
	return resp, err
}

func (s *session) Ticket(r driver.Request) driver.Ticket {
	return &ticket{
		session: s, request: r, now: content{r.Units, r.Value},
		base: s.backend.queue(r.Name).base,
	}
}

// Close revokes the lease, which removes every key of the session at once. An entry that
// is still on its way to the store finds no lease and is refused.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.backend.sessions.Delete(s)
	s.stop()
	s.vigil.end()
	s.closed.Wait()
	err := s.backend.attempt(ctx, s.bound, "revoke the lease", func(ctx context.Context) error {
		_, err := s.backend.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: s.lease}, s.backend.call...)
		return err
	})
	if isGone(err) {
		return nil // it has run out, or an earlier attempt has done it
	}
	return err
}

// busy counts in a goroutine of the session's, unless it is over: then Close may be
// waiting for the count to reach zero, and it must not rise any more.
func (s *session) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.closed.Add(1)
	}
	return !s.over
}

// txn is the session's way to the store. A lease that does not exist is the end of the
// session, whoever finds out.
func (s *session) txn(ctx context.Context, doing string, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	before := s.rev.Load()
	resp, err := s.backend.txn(ctx, s.bound, doing, t)
	if err != nil {
		if isGone(err) {
			s.gone("", err)
		}
		return nil, err
	}
	if err := s.reached(before, resp.Header.Revision); err != nil {
		return nil, err
	}
	return resp, nil
}

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
// any failure the stream is therefore abandoned, and with it whatever still comes.
//
// That the lease is renewed does not say that the keys are there: for that see vigil.go.
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
			s.backend.lines.suspect(began)
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
	s.settle()
	return time.Duration(resp.TTL) * time.Second, nil
}

// once renews, and ends the stream if that fails.
func (r *renewal) once(ctx context.Context, s *session) (resp *pb.LeaseKeepAliveResponse, err error) {
	var open context.Context
	if r.cancel == nil {
		open, r.cancel = context.WithCancel(s.ctx)
	}
	stop := context.AfterFunc(ctx, r.cancel) // a stream lives longer than one renewal, so ctx cannot be its own
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
