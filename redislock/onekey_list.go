package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// holder reads the holder of a lock, hasp's or a foreign one: its entry, and me, its value or
// field at the key. me is empty if the lock is free.
func (a *oneKey) holder(ctx context.Context, name string) (keys []string, e driver.Entry, me string, err error) {
	if keys, err = a.keys(name); err != nil {
		return nil, e, "", err
	}
	r := read(ctx, a.conn, a.dialect.peek, redisconn.Call{Keys: keys})
	if r.Err != nil {
		return nil, e, "", describeForeign(ctx, a.conn, a.opts.Strategy, keys[0], wrongType(name, r.Err))
	}
	parts, _ := r.Value.([]any)
	if len(parts) < 2 {
		return keys, e, "", nil
	}
	holder, _ := parts[0].(string)
	counter, _ := parts[1].(string)
	if me = holder; len(parts) > 2 {
		me, _ = parts[2].(string)
	}
	e.Request = driver.Request{Name: name, ID: holder, Units: driver.Whole, Capacity: driver.Whole, Owner: holder}
	if !a.opts.NoFence {
		e.Seq, _ = strconv.ParseUint(counter, 10, 64)
	}
	if ownValue.MatchString(holder) {
		var since string
		e.ID, since, _ = strings.Cut(holder, " ")
		since, e.Owner, _ = strings.Cut(since, " ")
		if us, err := strconv.ParseInt(since, 10, 64); err == nil {
			e.Since = time.UnixMicro(us)
		}
	}
	return keys, e, me, nil
}

// List shows the holder. The store does not know all waiters.
func (a *oneKey) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	_, e, me, err := a.holder(ctx, name)
	if err != nil || me == "" {
		return nil, err
	}
	return []driver.Entry{e}, nil
}

// Evict takes the lock from its holder, also from one of another library, which is not notified.
// It makes the holder's release, so that it takes nothing from a later holder, and wakes a
// waiter.
func (a *oneKey) Evict(ctx context.Context, name, id, _ string) error {
	keys, e, me, err := a.holder(ctx, name)
	if err != nil {
		return err
	}
	if me == "" || e.ID != id {
		return driver.ErrGone
	}
	r := a.conn.Eval(ctx, a.dialect.give, a.giveCall(keys, me, ""), 0)
	if r.Err == nil && r.Value != int64(1) {
		return driver.ErrGone
	}
	return wrongType(name, r.Err)
}

// LastEviction has none: the formats of other libraries have no room for notes.
func (a *oneKey) LastEviction(context.Context, string) (string, error) {
	return "", driver.ErrUnsupported
}

// Names reads the counters: a lock of another library looks like any other key, and only the
// names that hasp has taken within the retention have a counter. The present holder of such a
// name may be a foreign client.
func (a *oneKey) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	if a.opts.NoFence {
		return fmt.Errorf("%w: with fence=off nothing tells a lock from another key", driver.ErrUnsupported)
	}
	return scan(ctx, a.conn, a.opts.FencePrefix+"{*", "string", oneByOne(func(counter string) (more bool, err error) {
		key := setnx.Untag(strings.TrimPrefix(counter, a.opts.FencePrefix))
		name, ours := strings.CutPrefix(key, a.opts.Prefix)
		if !ours || !strings.HasPrefix(name, prefix) || name == "" || !utf8.ValidString(name) {
			return true, nil
		}
		_, _, me, err := a.holder(ctx, name)
		if err != nil || me == "" {
			return true, ctx.Err() // a key that is no lock any more is no error of the listing
		}
		return yield(name), nil
	}))
}

var (
	_ driver.Namer   = (*oneKey)(nil)
	_ driver.Evicter = (*oneKey)(nil)
)
