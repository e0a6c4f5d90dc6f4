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
	e, me = a.parseHolder(name, r.Value)
	return keys, e, me, nil
}

// parseHolder reads the answer of a dialect's peek.
func (a *oneKey) parseHolder(name string, answer any) (e driver.Entry, me string) {
	parts, _ := answer.([]any)
	if len(parts) < 3 {
		return e, ""
	}
	holder, _ := parts[0].(string)
	counter, _ := parts[1].(string)
	left, _ := parts[2].(int64)
	if me = holder; len(parts) > 3 {
		me, _ = parts[3].(string)
	}
	e.Left = time.Duration(max(left, 0)) * time.Millisecond
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
	if left < 0 {
		e.Owner += neverExpires
	}
	return e, me
}

// neverExpires follows the owner of a key without expiry, for people: others may lock so, and a
// person may have removed the expiry. Nothing but its holder, or they, will end such a lock.
const neverExpires = " (its key never expires: if it is gone, remove the key)"

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
	return listUsed(ctx, a.conn, a.opts.FencePrefix+"{*", "string", prefix, a.held, yield)
}

// counted returns the name that a counter is for.
func (a *oneKey) counted(counter string) (name string, ours bool) {
	return strings.CutPrefix(setnx.Untag(strings.TrimPrefix(counter, a.opts.FencePrefix)), a.opts.Prefix)
}

// held returns the names of those counters whose locks are held. A key that is no lock any more is
// no error.
func (a *oneKey) held(ctx context.Context, counters []string, prefix string) (held []string, err error) {
	var calls []redisconn.Call
	var of []string
	for _, counter := range counters {
		name, ours := a.counted(counter)
		if !ours || !strings.HasPrefix(name, prefix) || name == "" || !utf8.ValidString(name) {
			continue
		}
		if keys, err := a.keys(name); err == nil {
			calls, of = append(calls, redisconn.Call{Keys: keys}), append(of, name)
		}
	}
	for i, r := range readAll(ctx, a.conn, a.dialect.peek, calls) {
		if r.Err != nil && redisconn.Answered(r.Err) == "" {
			return held, r.Err
		}
		if _, me := a.parseHolder(of[i], r.Value); me != "" {
			held = append(held, of[i])
		}
	}
	return held, nil
}

var (
	_ driver.Namer   = (*oneKey)(nil)
	_ driver.Evicter = (*oneKey)(nil)
)
