package etcdlock

import (
	"context"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp/driver"
)

// List reads a queue in one linearizable read, of no more keys than asked for. Where some of
// those are no entries, the rest may be behind them: then it reads more, and anew, since the
// queue moves on. The server walks over all keys of the name either way; the limit saves
// sending them.
func (b *Backend) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if err := b.sameFormat(ctx); err != nil {
		return nil, err
	}
	q := b.queue(name)
	for keys := int64(limit); ; keys *= 8 {
		resp, err := b.read(ctx, "list the queue", byAge(q.all(), pb.RangeRequest_ASCEND, keys))
		if err != nil {
			return nil, err
		}
		if list := q.entries(resp.Kvs); !resp.More || len(list) >= limit {
			return driver.First(list, limit), nil
		}
	}
}

// namesAtOnce is how many keys one read of Names returns.
const namesAtOnce = 1000

// Names reads the keys under the prefix in pieces. Encoding keeps prefixes, so the range is
// no larger than it must be.
func (b *Backend) Names(ctx context.Context, prefix string, yield func(name string) bool) error {
	if err := b.sameFormat(ctx); err != nil {
		return err
	}
	encoded, _ := driver.EncodeName(prefix, maxEncoded)
	from := b.prefix + encoded
	to := clientv3.GetPrefixRangeEnd(from)
	if from == "" {
		from = "\x00" // etcd's way to say "all keys"; to is that, too
	}
	for {
		// With the values: asked for keys only, a current etcd leaves out the lease, by which
		// an entry is known.
		resp, err := b.read(ctx, "list names", &pb.RangeRequest{
			Key: []byte(from), RangeEnd: []byte(to), Limit: namesAtOnce,
		})
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			encoded, _, ok := strings.Cut(string(kv.Key[len(b.prefix):]), "/")
			if !ok || string(kv.Key) < from {
				continue // not a lock's; or of a name we have had
			}
			q := queue{base: b.prefix + encoded + "/"}
			if q.name, ok = driver.DecodeName(encoded); !ok {
				continue
			}
			if _, ok := q.entry(kv); !ok {
				continue
			}
			if !yield(q.name) {
				return nil
			}
			from = q.all().to // behind all keys of this name
		}
		if !resp.More {
			return nil
		}
		from = max(from, string(resp.Kvs[len(resp.Kvs)-1].Key)+"\x00")
	}
}
