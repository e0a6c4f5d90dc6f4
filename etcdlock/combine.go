package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// combiner sends transactions of a session, and those as one that are wanted at the same time. A
// transaction may contain others, each with its comparisons and its answer. For the server that
// is one request and one proposal to the other members, and for us one call.
//
// Nothing waits for company. A request is sent at once, by its caller, while fewer than inFlight
// are under way; those that come while so many are, go together as soon as one has returned.
//
// A session has two of them, for entering and for leaving, so that a release depends on no
// request that puts something: without space etcd refuses a transaction as a whole.
//
// What makes it safe to be one of several:
//
//   - etcd makes all comparisons before it does anything, and all that is done has one
//     revision. So there is one request per name in it. Two that enter one name would have one
//     place and one token, and a read in the middle would be of no revision at all. Those of
//     different names touch none of each other's keys. They share the epoch (leave.go), which
//     none of them changes: the request that does is sent by itself.
//   - etcd does all of it or nothing. If it refuses, for a reason that may be one entry's (no
//     permission, too large), each is sent by itself, by its caller if that is still there.
//     Any other error leaves the outcome of each open, as of a request by itself; callers know
//     how to ask again. After any error all are sent singly for a while.
//   - Before 3.4.42, 3.5.28 and 3.6.9 etcd does not ask whether the user may write what a
//     transaction in a transaction writes. So the keys are in the part that is done if the
//     comparisons fail, too: there are none, and it never is, but permissions and space are
//     demanded for it.
//   - If the caller's context ends before it was sent, the request is taken out, and has not
//     been made. After that it is a request of unknown outcome, as any that was cancelled.
//
// It may hang for its time limit, with a member that hangs, and so may as many as are allowed
// at once. Therefore one more is sent after every stuckAfter in which some wait.
type combiner struct {
	session *session
	doing   string // for errors

	mu      sync.Mutex
	flying  int // requests under way
	waiting []*combined
	singly  time.Time   // until then each is sent by itself
	timer   *time.Timer // see overdue
	armed   bool        // it runs
}

const (
	inFlight    = 2
	atOnce      = 32 // etcd allows 128 operations, and what is inside of one counts
	stuckAfter  = 100 * time.Millisecond
	singlyAfter = 5 * time.Second // an error
)

// combined is a request that has to wait for others.
type combined struct {
	name    string // of the lock
	request *pb.TxnRequest

	// What follows is guarded by the combiner's mu, until done is closed.
	done  chan struct{}
	gone  bool // the caller has
	alone bool // the caller sends it by itself; it is counted as under way
	resp  *pb.TxnResponse
	err   error
}

// errNotSent says that a request has not been made, and will not be.
var errNotSent = errors.New("not sent")

// txn makes a transaction that is about one name.
func (c *combiner) txn(ctx context.Context, doing, name string, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if r := c.gather(name, t); r != nil {
		select {
		case <-r.done:
		case <-ctx.Done():
			if err := c.giveUp(r); err != nil {
				return nil, fmt.Errorf("%w (%w)", ctx.Err(), err)
			}
		}
		if !r.alone {
			return r.resp, r.err
		}
	}
	defer c.returned()
	return c.session.txn(ctx, doing, t)
}

// gather returns nil if the request is to be sent now, by its caller, and counts it.
func (c *combiner) gather(name string, t *pb.TxnRequest) *combined {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flying < inFlight || time.Now().Before(c.singly) || c.session.ctx.Err() != nil {
		c.flying++
		return nil
	}
	r := &combined{name: name, request: t, done: make(chan struct{})}
	c.waiting = append(c.waiting, r)
	if !c.armed {
		c.arm()
	}
	return r
}

func (c *combiner) arm() {
	c.armed = true
	if c.timer == nil {
		c.timer = time.AfterFunc(stuckAfter, c.overdue)
	} else {
		c.timer.Reset(stuckAfter)
	}
}

// overdue is the timer's function. Where much is asked for, some always wait, and one request
// more does no harm.
func (c *combiner) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed = len(c.waiting) > 0; c.armed {
		c.launch()
		c.arm()
	}
}

// giveUp is for a caller whose context has ended. It returns nil if the request is over.
func (c *combiner) giveUp(r *combined) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting, r); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		return errNotSent
	}
	select {
	case <-r.done:
		return nil
	default:
		r.gone = true
		return errNoAnswer
	}
}

// returned is called when a request that was counted is over.
func (c *combiner) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flying--
	c.next()
}

// next sends what may be sent. The caller has mu.
func (c *combiner) next() {
	for c.flying < inFlight && len(c.waiting) > 0 {
		c.launch()
	}
}

// launch sends the oldest of those that wait, with others. The caller has mu.
func (c *combiner) launch() {
	batch := c.take()
	if len(batch) > 1 && c.session.startWorker() {
		c.flying++
		go c.send(batch)
		return
	}
	for _, r := range batch {
		c.sendAlone(r)
	}
}

// take takes off the oldest requests, of different names. The caller has mu.
func (c *combiner) take() (batch []*combined) {
	rest := c.waiting[:0]
	for _, r := range c.waiting {
		if len(batch) == atOnce || slices.ContainsFunc(batch, func(b *combined) bool { return b.name == r.name }) {
			rest = append(rest, r)
		} else {
			batch = append(batch, r)
		}
	}
	clear(c.waiting[len(rest):])
	c.waiting = rest
	return batch
}

// sendAlone has the caller send its request. The caller has mu.
func (c *combiner) sendAlone(r *combined) {
	if !r.gone {
		r.alone = true
		c.flying++
	}
	close(r.done)
}

// send makes several requests as one, on the session's context: that of no caller may end it.
func (c *combiner) send(batch []*combined) {
	s := c.session
	defer s.workers.Done()
	resp, err := s.txn(s.ctx, c.doing, nested(batch))
	if err == nil && !answers(resp, len(batch)) {
		err = fmt.Errorf("etcd: %s: the answer is not to what was asked", c.doing)
	} else if err != nil && s.ctx.Err() != nil {
		err = fmt.Errorf("etcd: %s: the session was closed meanwhile", c.doing)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flying--
	apart := refused(err) && !isGone(err) && !errors.Is(err, rpctypes.ErrTooManyRequests)
	for i, r := range batch {
		if apart {
			c.sendAlone(r)
			continue
		}
		if r.err = err; err == nil {
			r.resp = resp.Responses[i].GetResponseTxn()
			r.resp.Header = resp.Header
		}
		close(r.done)
	}
	if err != nil {
		c.separate()
	}
	c.next()
}

func answers(resp *pb.TxnResponse, n int) bool {
	return len(resp.Responses) == n &&
		!slices.ContainsFunc(resp.Responses, func(o *pb.ResponseOp) bool { return o.GetResponseTxn() == nil })
}

// separate has each request sent by itself for a while. The caller has mu.
func (c *combiner) separate() {
	c.singly = time.Now().Add(singlyAfter)
	for _, r := range c.waiting {
		c.sendAlone(r)
	}
	c.waiting = nil
}

// nested builds one transaction of several.
func nested(batch []*combined) *pb.TxnRequest {
	x := &pb.TxnRequest{}
	for _, r := range batch {
		x.Success = append(x.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r.request}})
		for _, op := range r.request.Success {
			if p := op.GetRequestPut(); p != nil {
				x.Failure = append(x.Failure, put(string(p.Key), nil, 0))
			} else if op.GetRequestDeleteRange() != nil {
				x.Failure = append(x.Failure, op)
			}
		}
	}
	return x
}
