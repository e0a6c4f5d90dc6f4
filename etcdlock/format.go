package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/hasplock/hasp/driver"
)

// format is the version of the keys, of their values and of how clients use them. It stands at the
// key P~format, which the first session under the prefix makes and none removes; that stays for
// good. A prefix without it is new, or of a build before the number, which is the same format.
//
// Each session looks at it while its lease is granted: two clients of two versions that begin at
// once cannot both make the key. A session that is open does not look again. For the number to
// change, an operator must remove the prefix, and with it the session's entries, without having
// stopped the clients, as the error demands. Rejected: a comparison in each transaction that
// enters, for an operator who does that.
const format = 1

// checkFormat refuses a prefix of another format. With note it makes the key if there is none. A
// user whose role ends at the entries of some names cannot look, and goes on without: others of its
// prefix can.
func (b *Backend) checkFormat(ctx context.Context, note bool) error {
	key := b.prefix + "~format"
	resp, err := b.read(ctx, "read the format", &pb.RangeRequest{Key: []byte(key)})
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return nil
	}
	if err != nil {
		return err
	}
	kv := only(resp)
	if kv == nil && note {
		made, err := b.txn(ctx, patience, "note the format", &pb.TxnRequest{
			Compare: []*pb.Compare{createdAt(key, 0)},
			Success: []*pb.RequestOp{put(key, []byte(strconv.Itoa(format)), 0)},
			Failure: []*pb.RequestOp{get(key)},
		})
		switch {
		case errors.Is(err, rpctypes.ErrPermissionDenied), err == nil && made.Succeeded:
			return nil
		case err != nil:
			return err
		}
		kv = only(found(made, 0))
	}
	if kv == nil || string(kv.Value) == strconv.Itoa(format) {
		return nil
	}
	found, _ := strconv.Atoi(string(kv.Value)) // 0: no number
	return driver.OtherFormat(fmt.Sprintf("the key %q", key), found, format, fmt.Sprintf("the keys that begin with %q", b.prefix))
}

// sameFormat is for those who look without a session: once for each Backend, since lists are for
// people.
func (b *Backend) sameFormat(ctx context.Context) error {
	if b.formatSeen.Load() {
		return nil
	}
	err := b.checkFormat(ctx, false)
	b.formatSeen.Store(err == nil)
	return err
}
