package etcdlock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hasplock/hasp/driver"
)

// session is a lease of etcd's. Every entry's key is attached to it, so etcd removes them
// all together, when it runs out or is revoked.
type session struct {
	backend *Backend
	lease   int64
	bound   time.Duration // of one call
	gone    func(id string, err error)

	ctx             context.Context // ends with Close, and with it every goroutine of the session
	stop            context.CancelFunc
	workers         sync.WaitGroup
	enters, leaves  combiner
	epoch           epoch
	watches         watches
	slots           slots
	pendingReleases pendingReleases
	proxied         atomic.Bool  // a stream of renewals was a proxy's; see KeepAlive
	rev             atomic.Int64 // the latest of an answer; see checkRevision

	mu         sync.Mutex
	closed     bool      // Close was called
	renew      *renewal  // a stream on which the next renewal may go, or nil
	unanswered time.Time // when the first renewal since the last answer was asked for
}

// Open takes a lease. It returns the TTL that etcd granted, which is more than asked for
// if the servers' election timeout is long.
//
// If the answer is lost, or the format is another, a lease without keys remains until it runs out:
// harmless.
func (b *Backend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if o.TTL < minTTL || o.TTL%time.Second != 0 {
		// Rounding would be a promise that the user did not ask for.
		return nil, 0, fmt.Errorf("%w: etcd counts TTLs in whole seconds from %s on, not %s", driver.ErrInvalid, minTTL, o.TTL)
	}
	checked := make(chan error, 1)
	go func() { checked <- b.checkFormat(ctx, true) }()
	resp, err := b.grant(ctx, o.TTL)
	if other := <-checked; err == nil {
		err = other
	}
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
	s.watches.session = s
	s.enters.session, s.enters.doing = s, "enter several queues"
	s.leaves.session, s.leaves.doing = s, "leave several queues"
	s.slots = slots{lease: leaseName(resp.ID), used: map[string][]*ticket{}, tickets: map[string]*ticket{}}
	s.pendingReleases.tickets = map[*ticket]bool{}
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
	return &ticket{session: s, request: r, base: s.backend.queue(r.Name).base}
}

// Close revokes the lease, which removes every key of the session at once. An entry that
// is still on its way to the store finds no lease and is refused.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.backend.sessions.Delete(s)
	s.stop()
	s.watches.close()
	s.workers.Wait()
	err := s.backend.attempt(ctx, s.bound, "revoke the lease", func(ctx context.Context) error {
		_, err := s.backend.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: s.lease}, s.backend.call...)
		return err
	})
	if isGone(err) {
		return nil // it has run out, or an earlier attempt has done it
	}
	return err
}

// startWorker counts in a goroutine of the session's, unless it is closed: then Close may be
// waiting for the count to reach zero, and it must not rise any more.
func (s *session) startWorker() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.workers.Add(1)
	}
	return !s.closed
}

// txn is the session's way to the store. A lease that does not exist is the end of the
// session, whichever call finds out.
func (s *session) txn(ctx context.Context, doing string, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	before := s.rev.Load()
	resp, err := s.backend.txn(ctx, s.bound, doing, t)
	if err != nil {
		if isGone(err) {
			s.gone("", err)
		}
		return nil, err
	}
	if err := s.checkRevision(before, resp.Header.Revision); err != nil {
		return nil, err
	}
	return resp, nil
}

// A store that is put back to an earlier state (a snapshot, or the copy of a data directory)
// forgets what it has confirmed since, and uses revisions again. All that is argued here goes
// by revisions that grow: what was read and what is told would be of two histories. So no
// session outlives what it can see of that: an answer to a transaction is at least as late as
// those that we had before it was sent, and the first that is not ends the session. What it
// held is lost, which is the truth for what was entered since, and the only safe answer for
// the rest.
//
// Other clients may have used as many revisions by then as we knew of. But the members must have
// been down for it, and with each the stream. So whenever one is opened anew, all keys are looked
// for; behind a proxy, whose clients do not notice, with the second renewal at the latest
// (keywatch.go).

// checkRevision notes the revision of the store in an answer to a transaction, and returns an
// error if it was further when the transaction was sent.
func (s *session) checkRevision(before, now int64) error {
	if now < before {
		err := fmt.Errorf("%w: etcd has gone back from revision %d to %d: was a snapshot restored?", driver.ErrGone, before, now)
		s.gone("", err)
		return err
	}
	for {
		old := s.rev.Load()
		if now <= old || s.rev.CompareAndSwap(old, now) {
			return nil
		}
	}
}

// sleep returns early if ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
