package etcdlock

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hasplock/hasp/driver"
)

// Identity returns the cluster's id and a random name that was made for the prefix when it was
// first asked for, and is kept in the cluster.
//
// The id alone would not do, although it comes with every answer: etcd makes it of the members'
// peer addresses and a token with a default. All clusters of one member with default settings
// have the same, and so do two stacks of containers that are set up alike; to take their locks
// for each other's would be to hold one and believe in both. The name alone would not do
// either: a snapshot that is restored for a second cluster brings it along. (A second cluster
// with the addresses and the token of the first cannot be told from it.)
//
// The first client puts the name, and all read it. Should the answer to the put be lost, or
// another be faster, the read finds what is there.
func (b *Backend) Identity(ctx context.Context) (string, error) {
	key := b.prefix + "~store"
	for full := error(nil); ; {
		resp, err := b.read(ctx, "identify the store", &pb.RangeRequest{Key: []byte(key)})
		if err != nil {
			return "", err
		}
		if kv := only(resp); kv != nil {
			// Hashed, since a prefix may have any length.
			name := sha256.Sum256(append([]byte(key+"\x00"), kv.Value...))
			return fmt.Sprintf("etcd:%016x:%x", resp.Header.ClusterId, name[:16]), nil
		}
		if full != nil {
			return "", full
		}
		if full = b.createIdentity(ctx, key); full != nil && !isFull(full) {
			return "", full
		}
	}
}

// createIdentity puts a name, unless there is one.
func (b *Backend) createIdentity(ctx context.Context, key string) error {
	_, err := b.txn(ctx, patience, "name the store", &pb.TxnRequest{
		Compare: []*pb.Compare{createdAt(key, 0)},
		Success: []*pb.RequestOp{put(key, []byte(rand.Text()), 0)},
	})
	return err
}

var _ driver.Identifier = (*Backend)(nil)
