// Package etcdfence checks writes in etcd with a fencing token: the greatest token seen is the
// value of one key for each lock name, and every transaction has the condition that this value is
// still the writer's. That is one round trip, with one comparison more.
//
//	fence, err := etcdfence.With(ctx, client, lease, nil)
//	...read, think...
//	_, err = fence.Do(ctx, clientv3.OpPut("orders/42", "paid"))
//
// If the lock is in the same etcd cluster as the data, etcdlock's Backend.StillHeld needs no
// separate fence: it makes the write conditional on the lock's own entry. This package is for locks
// in other stores, and for writers that have only a token (HASP_TOKEN).
//
// A restored snapshot resets the fence together with the data.
package etcdfence

import (
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/retry"
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

// maxEncoded keeps names of a usual length readable; longer ones are hashed.
const maxEncoded = 512

// With makes the fence refuse every token smaller than the lease's from now on, and returns the
// Writer of this token. It returns a *fencing.StaleError if the fence has seen a greater token.
// After any other error the fence may have advanced: call With again with the same lease, or give
// the lease up. It takes one round trip, and two more for the first use of a name.
func With(ctx context.Context, kv clientv3.KV, lease fencing.Grant, o *Options) (*Writer, error) {
	name, token := lease.Name(), lease.Token()
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

// value is a token as the fence stores it: of fixed length, so that etcd's comparison of bytes
// compares the numbers.
func value(token uint64) string { return fmt.Sprintf("%020d", token) }

// advance raises the fence if it is lower, and creates it if it is absent.
func (w *Writer) advance(ctx context.Context) error {
	put := clientv3.OpPut(w.key, value(w.token))
	// A comparison of values is false for a missing key, so creating one needs a separate
	// condition. A nested transaction with both would send everything twice, only for the first
	// use.
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
			if err := w.readFence(r); err != nil {
				return false, err
			}
		}
		// It was absent, and then present, with a token that this one may follow.
		return true, nil
	})
}

// readFence reads the fence from the answer to a transaction whose condition was not met. It
// returns nil if this token may try again: the fence is lower or absent.
func (w *Writer) readFence(r *clientv3.TxnResponse) error {
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

// Do executes all of ops in one transaction, unless the fence has seen a greater token: then it
// returns a *fencing.StaleError and executes none.
func (w *Writer) Do(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	return w.Txn(ctx, nil, ops, nil)
}

// Txn executes your transaction unless the fence has seen a greater token: then it returns a
// *fencing.StaleError and executes neither branch. The response is that of your transaction:
// Succeeded says whether your own conditions were met.
func (w *Writer) Txn(ctx context.Context, conditions []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	var response *clientv3.TxnResponse
	err := retry.Do(ctx, retry.Tries, func() (bool, error) {
		// The comparison is "equal", not "at most": With has set this value, and it stays until
		// a greater one comes. So not every write must write the fence again.
		r, err := w.kv.Txn(ctx).
			If(clientv3.Compare(clientv3.Value(w.key), "=", value(w.token))).
			Then(clientv3.OpTxn(conditions, then, otherwise)).
			Else(clientv3.OpGet(w.key)).Commit()
		if err != nil {
			return false, w.about(err)
		}
		if r.Succeeded {
			response = (*clientv3.TxnResponse)(r.Responses[0].GetResponseTxn())
			response.Header = r.Header // an inner one has no header
			return false, nil
		}
		if err := w.readFence(r); err != nil {
			return false, err
		}
		// The fence was removed or reset by hand. Nothing was written.
		return true, w.advance(ctx)
	})
	return response, err
}

func (w *Writer) about(err error) error {
	return fmt.Errorf("write with token %d of lock %q: %w", w.token, w.name, err)
}
