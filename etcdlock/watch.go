package etcdlock

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watch follows a name. Between two messages of etcd's that something has changed, it
// costs nothing.
func (b *Backend) Watch(ctx context.Context, name string, changed func()) error {
	all := b.queue(name).all()
	// The watch of clientv3 resumes by itself after a lost connection, from where it was.
	w := clientv3.NewWatcher(b.client)
	defer w.Close()
	events := w.Watch(clientv3.WithRequireLeader(ctx), all.from, clientv3.WithRange(all.to), clientv3.WithCreatedNotify())
	for resp := range events {
		if err := resp.Err(); err != nil {
			return explain(ctx, "watch", err)
		}
		changed()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return fmt.Errorf("etcd: the watch has ended")
}
