// Package etcdfence checks writes in etcd with a fencing token: the greatest token seen is the
// value of one key for each lock name, and every transaction is made on condition that it
// still is the writer's. That is one round trip, and one comparison more in it.
//
//	w, err := etcdfence.Advance(ctx, client, lease.Name(), lease.Token(), nil)
//	...read, think...
//	_, err = w.Do(ctx, clientv3.OpPut("orders/42", "paid"))
//
// If the lock is in the same etcd cluster as the data, etcdlock's Backend.Fence does without
// a fence: it makes the write conditional on the lock's own entry. This package is for locks
// that are kept elsewhere, and for writers who know no more than a token (HASP_TOKEN).
//
// A snapshot that is restored takes the fence back together with the data.
package etcdfence

import (
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/internal/retry"
)

// DefaultPrefix begins the keys of the fences.
const DefaultPrefix = "hasp/fence/"

// Options are the settings of a Writer. nil or the zero value means the defaults.
type Options struct {
	// Prefix begins the key of the fence; the encoded lock name follows. Default:
	// DefaultPrefix.
	Prefix string
}

// Writer writes under one token. Its methods may be called at once from many goroutines.
type Writer struct {
	kv    clientv3.KV
	key   string
	name  string
	token uint64
}

// maxEncoded leaves every name readable that is of a usual length; longer ones are hashed.
const maxEncoded = 512

// Advance has every smaller token of the lock refused from now on, and returns what writes
// under this one. It returns a *fencing.StaleError if a greater token has been here. It takes
// one round trip, and two more the first time that a name is used.
func Advance(ctx context.Context, kv clientv3.KV, name string, token uint64, o *Options) (*Writer, error) {
	if err := fencing.Check(name, token); err != nil {
		return nil, err
	}
	prefix := DefaultPrefix
	if o != nil && o.Prefix != "" {
		prefix = o.Prefix
	}
	encoded, _ := driver.EncodeName(name, maxEncoded)
	w := &Writer{kv: kv, key: prefix + encoded, name: name, token: token}
	if err := w.advance(ctx); err != nil {
		return nil, err
	}
	return w, nil
}

// Key returns the key of the fence.
func (w *Writer) Key() string { return w.key }

// value is a token as the fence has it: of one length, so that etcd's comparison of bytes is
// one of numbers.
func value(token uint64) string { return fmt.Sprintf("%020d", token) }

// advance raises the fence if it is lower, and makes it if it is not there.
func (w *Writer) advance(ctx context.Context) error {
	put := clientv3.OpPut(w.key, value(w.token))
	// A comparison of values is false for a key that is not there, so making one is a
	// condition of its own. Both in one transaction, nested, would send everything twice for
	// the sake of the first use.
	conditions := []clientv3.Cmp{
		clientv3.Compare(clientv3.Value(w.key), "<", value(w.token+1)),
		clientv3.Compare(clientv3.CreateRevision(w.key), "=", 0),
	}
	return retry.Do(ctx, retry.Tries, func() (bool, error) {
		for _, c := range conditions {
			r, err := w.kv.Txn(ctx).If(c).Then(put).Else(clientv3.OpGet(w.key)).Commit()
			if err != nil {
				return false, w.about(err)
			}
			if r.Succeeded {
				return false, nil
			}
			if err := w.judge(r); err != nil {
				return false, err
			}
		}
		// It was not there, and then it was, with a token that we may follow.
		return true, nil
	})
}

// judge reads the fence out of the answer to a transaction whose condition was not met, and
// returns nil if this token may try again: the fence is lower, or not there.
func (w *Writer) judge(r *clientv3.TxnResponse) error {
	kvs := r.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return nil
	}
	text := string(kvs[0].Value)
	seen, err := strconv.ParseUint(text, 10, 64)
	if err != nil || text != value(seen) {
		return w.about(fmt.Errorf("the key %s is no fence: it holds %q", w.key, text))
	}
	return fencing.Compare(w.name, w.token, seen)
}

// Do makes all of ops in one transaction, unless a greater token has been here: then it
// returns a *fencing.StaleError and none is made.
func (w *Writer) Do(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	return w.Txn(ctx, nil, ops, nil)
}

// Txn makes a transaction of yours unless a greater token has been here: then it returns a
// *fencing.StaleError and neither branch is made. The response is that of your transaction:
// Succeeded says whether your own conditions were met.
func (w *Writer) Txn(ctx context.Context, conditions []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	var response *clientv3.TxnResponse
	err := retry.Do(ctx, retry.Tries, func() (bool, error) {
		// Equal, and not "at most": Advance has made it so, and it stays so until a greater
		// one comes. So the fence need not be written again with every write.
		r, err := w.kv.Txn(ctx).
			If(clientv3.Compare(clientv3.Value(w.key), "=", value(w.token))).
			Then(clientv3.OpTxn(conditions, then, otherwise)).
			Else(clientv3.OpGet(w.key)).Commit()
		if err != nil {
			return false, w.about(err)
		}
		if r.Succeeded {
			response = (*clientv3.TxnResponse)(r.Responses[0].GetResponseTxn())
			response.Header = r.Header // an inner one has none
			return false, nil
		}
		if err := w.judge(r); err != nil {
			return false, err
		}
		// Somebody has removed the fence or taken it back. Nothing was written.
		return true, w.advance(ctx)
	})
	return response, err
}

func (w *Writer) about(err error) error {
	return fmt.Errorf("write with token %d of lock %q: %w", w.token, w.name, err)
}
