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
// is one request and one proposal to the other members, and for us one call: where 64 goroutines
// lock, it takes half of the processor time of both.
//
// Nothing waits for company. A request is sent at once, by its caller, while fewer than inFlight
// are under way; those that come while so many are, go together as soon as one has returned. Those
// under way may hang for their time limit, with a member that hangs: so one more is sent after every
// stuckAfter in which some wait.
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
//     permission, too large), each caller sends its own. Any other error leaves the outcome of
//     each open, as of a request by itself; callers know how to ask again.
//   - Before 3.4.42, 3.5.28 and 3.6.9 etcd does not ask whether the user may write what a
//     transaction in a transaction writes. So the keys are in the part that is done if the
//     comparisons fail, too: there are none, and it never is, but permissions and space are
//     demanded for it.
//   - If the caller's context ends before it was sent, the request is taken out, and has not
//     been made. After that it is a request of unknown outcome, as any that was cancelled.
type combiner struct {
	session *session
	doing   string // for errors

	mu      sync.Mutex
	flying  int // requests under way, but for those that callers send after a refusal
	waiting []*combined
	timer   *time.Timer // see overdue; nil: none waits
}

const (
	inFlight   = 2
	atOnce     = 32 // etcd allows 128 operations, and what is inside of one counts
	stuckAfter = 100 * time.Millisecond
)

// combined is a request that has to wait for others.
type combined struct {
	name    string // of the lock
	request *pb.TxnRequest
	done    chan outcome // one slot: the caller may have gone
}

// outcome is the end of a combined request. With neither an answer nor an error it has not been
// made, and the caller is to send it.
type outcome struct {
	resp *pb.TxnResponse
	err  error
}

// errNotSent says that a request has not been made, and will not be.
var errNotSent = errors.New("not sent")

// txn makes a transaction that is about one name.
func (c *combiner) txn(ctx context.Context, doing, name string, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	c.mu.Lock()
	if c.flying < inFlight || c.session.ctx.Err() != nil {
		c.flying++
		c.mu.Unlock()
		defer c.returned()
		return c.session.txn(ctx, doing, t)
	}
	r := &combined{name: name, request: t, done: make(chan outcome, 1)}
	c.waiting = append(c.waiting, r)
	if c.timer == nil {
		c.timer = time.AfterFunc(stuckAfter, c.overdue)
	}
	c.mu.Unlock()
	select {
	case o := <-r.done:
		if o.resp != nil || o.err != nil {
			return o.resp, o.err
		}
		return c.session.txn(ctx, doing, t)
	case <-ctx.Done():
		return nil, fmt.Errorf("%w (%w)", ctx.Err(), c.giveUp(r))
	}
}

// giveUp is for a caller whose context has ended, and returns whether the request was sent.
func (c *combiner) giveUp(r *combined) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting, r); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		return errNotSent
	}
	return errNoAnswer
}

// overdue is the timer's function. Where much is asked for, some always wait, and one request
// more does no harm.
func (c *combiner) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.timer = nil
		return
	}
	c.launch()
	c.timer.Reset(stuckAfter)
}

// returned is called when a request that was counted is over.
func (c *combiner) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flying--
	for c.flying < inFlight && len(c.waiting) > 0 {
		c.launch()
	}
}

// launch sends the oldest of those that wait, with others of different names. The caller has mu.
func (c *combiner) launch() {
	batch, rest := []*combined(nil), c.waiting[:0]
	for _, r := range c.waiting {
		if len(batch) == atOnce || slices.ContainsFunc(batch, func(b *combined) bool { return b.name == r.name }) {
			rest = append(rest, r)
		} else {
			batch = append(batch, r)
		}
	}
	clear(c.waiting[len(rest):])
	c.waiting = rest
	if c.session.startWorker() {
		c.flying++
		go c.send(batch)
		return
	}
	for _, r := range batch {
		r.done <- outcome{} // the session is closed
	}
}

// send makes several requests as one, on the session's context: that of no caller may end it.
func (c *combiner) send(batch []*combined) {
	s := c.session
	defer s.workers.Done()
	defer c.returned()
	if len(batch) == 1 {
		resp, err := s.txn(s.ctx, c.doing, batch[0].request)
		batch[0].done <- outcome{resp, c.named(err)}
		return
	}
	resp, err := s.txn(s.ctx, c.doing, nested(batch))
	if refused(err) && !isGone(err) && !errors.Is(err, rpctypes.ErrTooManyRequests) {
		resp, err = nil, nil // each by itself
	}
	for i, r := range batch {
		o := outcome{err: c.named(err)}
		if resp != nil {
			o.resp = resp.Responses[i].GetResponseTxn()
			o.resp.Header = resp.Header
		}
		r.done <- o
	}
}

// named says of the end of the session's context what it means to a caller.
func (c *combiner) named(err error) error {
	if err != nil && c.session.ctx.Err() != nil {
		return fmt.Errorf("etcd: %s: the session was closed meanwhile", c.doing)
	}
	return err
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
