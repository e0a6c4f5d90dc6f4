package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/quarantine"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// node is one of the servers.
type node struct {
	conn  redisconn.Conn
	guard *quarantine.Guard

	mu      sync.Mutex
	pending int       // requests without an answer yet
	since   time.Time // since when it has not answered, while something was pending
}

func (n *node) String() string { return strings.TrimPrefix(n.conn.String(), "redis://") }

// named adds the server's name to an error. An error of connecting has it already.
func (n *node) named(err error) error {
	if err = redisconn.Refusal(err); strings.Contains(err.Error(), n.String()) {
		return err
	}
	return fmt.Errorf("%s: %w", n, err)
}

// eval makes a request and waits for its end, which may be long after the call that made it.
func (n *node) eval(ctx context.Context, s *redisconn.Script, c redisconn.Call) redisconn.Reply {
	n.begin()
	r := n.guard.Eval(ctx, s, c, 0)
	n.finish()
	return r
}

func (n *node) evalAll(ctx context.Context, s *redisconn.Script, calls []redisconn.Call) []redisconn.Reply {
	n.begin()
	rs := n.guard.EvalAll(ctx, s, calls, 0)
	n.finish()
	return rs
}

func (n *node) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pending == 0 {
		n.since = time.Now()
	}
	n.pending++
}

func (n *node) finish() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending--
	n.since = time.Now()
}

// silent reports that the server has not answered for longer than the timeout. It is not asked
// for its vote until it has answered, or the request has come to an end in another way:
// a server that hangs would otherwise collect any number of requests, each of which must be undone
// when it resumes. It is a guess about the network, and no held lock depends on it.
func (n *node) silent(timeout time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pending > 0 && time.Since(n.since) > timeout
}

// meet connects, checks that the server can vote, and returns its run_id, by which a server
// is known at every address; "" if it does not tell.
func (n *node) meet(ctx context.Context) (runID string, err error) {
	if err := connect(ctx, n.conn); err != nil {
		return "", redisconn.Refusal(err)
	}
	if topology := n.conn.Topology(); topology != redisconn.Single {
		return "", fmt.Errorf("%w: %s is a %s, whose locks move between servers; redlock needs independent ones", driver.ErrInvalid, n, topology)
	}
	err = n.conn.Each(ctx, func(s redisconn.Node) error {
		runID, err = redisconn.Meet(ctx, s, ", which has no vote; name its master")
		return err
	})
	return runID, err
}

// vote is a server's answer to a request for the lock.
type vote int

const (
	none     vote = iota // nothing has been sent, or nothing can have been done
	granted              // the key is ours
	denied               // the key is another client's, or reserved for a waiter
	abstains             // the server may have forgotten grants, and grants nothing
	unclear              // the answer is lost: the key may be ours
)

// ballot is a vote and its details.
type ballot struct {
	node   int
	vote   vote
	value  string        // at the key; "" if it is reserved for a waiter
	holder string        // the part of value that identifies the holder
	id     string        // of the holder
	left   time.Duration // until the key expires, negative: never; or until the server grants again
	ahead  int64         // waiters in front, if it is reserved for one
	since  string        // of a refusal: when the server has first refused us
	err    error
}

func readBallot(i int, r redisconn.Reply) ballot {
	b := ballot{node: i, vote: unclear, err: r.Err}
	parts, _ := r.Value.([]any)
	switch {
	case redisconn.NotSent(r.Err), redisconn.Answered(r.Err) == "WRONGTYPE", redisconn.Replica(r.Err):
		b.vote = none
	case r.Err != nil:
	case len(parts) == 2 && parts[0] == int64(1):
		b.vote = granted
	case len(parts) >= 3:
		ms, _ := parts[1].(int64)
		b.vote, b.left = denied, time.Duration(ms)*time.Millisecond
		b.value, _ = parts[2].(string)
		if len(parts) > 3 {
			b.since, _ = parts[3].(string)
		}
		if len(parts) > 4 {
			b.vote = abstains
			return b
		}
		if b.value == "" {
			b.ahead, b.left = ms, noExpiry
		}
		h, _ := parse("", b.value)
		b.holder, b.id = h.me, h.entry.ID
	default:
		b.err = errors.New("unexpected answer")
	}
	return b
}
