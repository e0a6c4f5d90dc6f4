package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp/driver"
)

// DefaultPrefix is in front of every key, unless Options say otherwise.
const DefaultPrefix = "hasp/"

// minTTL is the least that etcd grants with its default election timeout of one second:
// one and a half of them, in whole seconds.
const minTTL = 2 * time.Second

// Options are the settings of Open. nil and zero fields mean the defaults.
type Options struct {
	// Prefix is in front of every key. It separates the locks of one cluster's users,
	// and etcd's roles are granted for it. Default: DefaultPrefix. All clients of a lock must
	// agree on it.
	Prefix string

	// NoPrefix puts the names at the root of the key space, where `etcdctl lock NAME`
	// and other tools may already have theirs. It excludes Prefix.
	NoPrefix bool
}

// Backend keeps locks in etcd through one client. Its methods may be called at once from
// many goroutines.
//
// The calls go over the client's connection, with its credentials and TLS, but not through
// clientv3's wrappers, for two reasons. Those wait for an unreachable server as long as
// the context lasts, and then know nothing of why; hasp waits itself and wants to tell the
// user "connection refused". And KeepAliveOnce repeats itself without a pause while a
// cluster has no leader.
//
// What of the client's own repeating remains (its interceptor sees every call) is
// harmless: it repeats a write that was never sent, or that was refused for an expired
// token before anything was done; and where the server itself ended a call, in which
// case a write may have been done: entering again finds the entry by its id, and leaving
// again finds nothing, so that a release at worst reports a loss that was none.
type Backend struct {
	client      *clientv3.Client
	own         bool         // opened by us, so Close closes it
	connections *connections // of a client opened by us
	label       string
	prefix      string

	sessions   sync.Map    // of *session, for StillHeld
	formatSeen atomic.Bool // see sameFormat

	kv    pb.KVClient
	lease pb.LeaseClient
	watch pb.WatchClient
	call  []grpc.CallOption
}

// New makes a Backend of a client. Closing the Backend does not close the client.
//
// The client should be made with DialKeepAliveTime and DialKeepAliveTimeout (10 s and
// 3 s, say), and with a short reconnect back-off (grpc.WithConnectParams), as the ones
// that hasp opens from a URL: else a silent network failure lasts for the client until
// TCP gives up, and it may come back two minutes after the server.
func New(client *clientv3.Client, o *Options) (*Backend, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: the etcd client is nil", driver.ErrInvalid)
	}
	if o == nil {
		o = &Options{}
	}
	prefix := o.Prefix
	switch {
	case o.NoPrefix && prefix != "":
		return nil, fmt.Errorf("%w: Prefix and NoPrefix exclude each other", driver.ErrInvalid)
	case !o.NoPrefix && prefix == "":
		prefix = DefaultPrefix
	}
	conn := client.ActiveConnection()
	return &Backend{
		client: client,
		label:  label(client.Endpoints()),
		prefix: prefix,
		kv:     pb.NewKVClient(conn),
		lease:  pb.NewLeaseClient(conn),
		watch:  pb.NewWatchClient(conn),
		// A queue of ten thousand is listed in one answer, and gRPC's limit is 4 MB.
		call: []grpc.CallOption{grpc.MaxCallRecvMsgSize(math.MaxInt32)},
	}, nil
}

// label names the cluster by its addresses. An endpoint may be a URL; no endpoint has a
// user or a password.
func label(endpoints []string) string {
	hosts := make([]string, len(endpoints))
	for i, e := range endpoints {
		if _, rest, ok := strings.Cut(e, "://"); ok {
			e = rest
		}
		hosts[i] = strings.TrimSuffix(e, "/")
	}
	return "etcd://" + strings.Join(hosts, ",")
}

// String names the store.
func (b *Backend) String() string { return b.label }

// Traits are what etcd can promise: everything.
func (b *Backend) Traits() driver.Traits {
	return driver.Traits{
		FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true, Push: true,
		Liveness: driver.Leased, MinTTL: minTTL,
	}
}

// Close closes the client if it was opened from a URL.
func (b *Backend) Close() error {
	if b.own {
		return b.client.Close()
	}
	return nil
}

// patience bounds one call outside of a session. It is longer than an election of etcd's
// takes, and short enough to ask another member when this one hangs.
const patience = 5 * time.Second

// txn makes one transaction within its own time limit: if a member is stopped or cut off,
// the next attempt goes to another. A transaction that only reads is linearizable, as
// etcd's reads are unless asked otherwise.
func (b *Backend) txn(ctx context.Context, bound time.Duration, doing string, t *pb.TxnRequest) (resp *pb.TxnResponse, err error) {
	err = b.attempt(ctx, bound, doing, func(ctx context.Context) (err error) {
		resp, err = b.kv.Txn(ctx, t, b.call...)
		return err
	})
	if err == nil && (resp.Header == nil || !answers(resp, t)) {
		return nil, fmt.Errorf("etcd: %s: the answer is not to what was asked", doing)
	}
	return resp, err
}

// answers reports whether each part of a transaction has an answer. What stands between us and etcd
// may change one, and its readers would end the program by a panic.
func answers(resp *pb.TxnResponse, t *pb.TxnRequest) bool {
	asked := t.Failure
	if resp.GetSucceeded() {
		asked = t.Success
	}
	if resp == nil || len(resp.Responses) != len(asked) {
		return false
	}
	for i, op := range asked {
		if inner := op.GetRequestTxn(); inner != nil && !answers(resp.Responses[i].GetResponseTxn(), inner) {
			return false
		}
	}
	return true
}

func (b *Backend) read(ctx context.Context, doing string, r *pb.RangeRequest) (resp *pb.RangeResponse, err error) {
	err = b.attempt(ctx, patience, doing, func(ctx context.Context) (err error) {
		resp, err = b.kv.Range(ctx, r, b.call...)
		return err
	})
	return resp, err
}

// attempt makes one call within ctx and the bound. The bound is a timer of ours and no
// deadline of the context, which gRPC would have the server watch as well: a header and a
// timer more for each call, a tenth of its cost.
func (b *Backend) attempt(ctx context.Context, bound time.Duration, doing string, call func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(bound, func() { cancel(errNoAnswer) })
	defer timer.Stop()
	err := pastLearners(func() error { return call(bounded) })
	if err != nil && context.Cause(bounded) == errNoAnswer {
		b.connections.closeSilent(began)
		err = fmt.Errorf("%w within %s", errNoAnswer, bound)
	}
	return explain(ctx, doing, err)
}

var errNoAnswer = errors.New("no answer")
