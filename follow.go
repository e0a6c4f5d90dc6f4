package hasp

import (
	"context"
	"iter"
	"slices"
)

// Follow yields the queue of a name as it is, and then whenever it has changed, until ctx
// ends or the loop is left: by the store's push where it has one, else by a look each
// second. Changes that follow each other quickly may be folded: the last one is always seen.
// It is a view for people and programs that report, as [Client.Inspect] is.
//
// An error (the store cannot be reached) is yielded with the zero Queue, and following goes
// on when the store is back; leave the loop if that is not wanted. It ends after yielding
// the context's error, and in it the store's last, if that has not answered since.
func (c *Client) Follow(ctx context.Context, name string) iter.Seq2[Queue, error] {
	inspect := func(ctx context.Context) (Queue, error) { return c.Inspect(ctx, name) }
	return followed(ctx, c, name, inspect, Queue.same)
}

// followed yields what look finds under a name, whenever that is not the same as before.
func followed[T any](ctx context.Context, c *Client, name string,
	look func(context.Context) (T, error), same func(a, b T) bool,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var nothing T
		if ctx == nil {
			yield(nothing, c.wrap(ctx, "follow", name, errNilContext))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		changed := c.follow(ctx, name)
		var last *T
		var failed error // why the last look found nothing
		var b backoff
		for {
			found, err := look(ctx)
			if err != nil && ctx.Err() == nil {
				failed = err
				if !yield(nothing, err) || hopeless(err) {
					return
				}
				b.sleep(ctx) // no change would be signalled, so look again
				continue
			}
			if err == nil {
				b, failed = backoff{}, nil
			}
			if err == nil && (last == nil || !same(found, *last)) {
				last = &found
				if !yield(found, nil) {
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				yield(nothing, c.wrap(ctx, "follow", name, unconfirmed(ctx, failed)))
				return
			}
		}
	}
}

// same reports whether two looks at a queue have shown the same.
func (q Queue) same(o Queue) bool {
	return slices.EqualFunc(q.Holders, o.Holders, Entry.same) && slices.EqualFunc(q.Waiters, o.Waiters, Entry.same)
}

func (e Entry) same(o Entry) bool {
	return e.ID == o.ID && e.Token == o.Token && e.Units == o.Units && string(e.Value) == string(o.Value)
}
