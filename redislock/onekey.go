package redislock

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// oneKey is the backend of the dialects: a mutex, with a token if there is a counter.
type oneKey struct {
	store
	dialect *dialect
}

func newOneKey(conn redisconn.Conn, o Options, d *dialect) *oneKey {
	// They share their locks with other libraries, and have no prefix for all keys: the mark is
	// with their other keys.
	return &oneKey{newStore(conn, setnx.CompanionPrefix, o), d}
}

func (a *oneKey) Traits() driver.Traits {
	return driver.Traits{Fencing: !a.opts.NoFence, Push: true, Forgets: true, Liveness: driver.Leased, MinTTL: minTTL}
}

// keys are those of the lock, its counter, and its waiters or the description of its holder. The
// lock's key is the name itself, as in the other libraries.
func (a *oneKey) keys(name string) ([]string, error) {
	key := a.opts.Prefix + name
	braced, ok := setnx.Tag(key)
	switch {
	case strings.HasPrefix(key, a.opts.FencePrefix) && !a.opts.NoFence, strings.HasPrefix(key, setnx.CompanionPrefix):
		return nil, fmt.Errorf("%w: keys that begin with %q are taken by this strategy", driver.ErrUnsupported, setnx.CompanionPrefix)
	case !ok && a.conn.Topology() == redisconn.Cluster:
		return nil, fmt.Errorf("%w: with '}' in the name its keys cannot share a slot of the cluster", driver.ErrUnsupported)
	}
	return []string{key, a.opts.FencePrefix + braced, a.dialect.companion + braced}, nil
}

// Quarantine asks the server of the name.
func (a *oneKey) Quarantine(ctx context.Context, name string) (time.Duration, error) {
	keys, err := a.keys(name)
	if err != nil {
		return 0, err
	}
	return a.guard.Left(ctx, keys[0])
}

// wakeArgs bounds how many waiters give.lua tries to wake, one after the other, while none
// seems to listen. A node of a cluster counts its own listeners only.
func (a *oneKey) wakeArgs(member string) []string {
	most := "8"
	if a.conn.Topology() == redisconn.Cluster {
		most = "1"
	}
	return []string{member, setnx.ChannelPrefix, most}
}

// Open subscribes to the session's channel, unless the dialect has one for each name.
func (a *oneKey) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	o.TTL = o.TTL.Truncate(time.Millisecond) // the server is asked for whole milliseconds: promise no more
	keep, err := a.opts.keep(o.TTL)
	if err == nil {
		err = a.opts.mayWait(ctx, a.conn)
	}
	if err != nil {
		return nil, 0, err
	}
	s := &oneKeySession{
		store: a, opts: o, keep: keep, counter: keep, id: strings.ToLower(crand.Text()[:16]), uuid: newUUID(),
		tickets: map[string]*oneKeyTicket{}, names: map[string]*nameWaiters{}, leaving: map[*oneKeyTicket]bool{},
	}
	if a.opts.NoFence {
		s.counter = "0"
	}
	s.done, s.finish = context.WithCancel(context.Background())
	if a.dialect.announces {
		// Nothing is listened to yet. A user who may not publish could never release.
		r := a.conn.Eval(ctx, publishing, redisconn.Call{Args: []string{redissonChannel(a.opts.Prefix + "hasp")}}, 0)
		if redisconn.Answered(r.Err) != "" {
			return nil, 0, redisconn.Refusal(r.Err)
		}
		return s, o.TTL, nil
	}
	l := &redisconn.Listener{Conn: a.conn, Channel: setnx.ChannelPrefix + s.id, Message: s.onWake, Subscribed: func(context.Context) { s.notifyAll() }}
	if err := l.Start(ctx, s.done); err != nil {
		s.finish()
		return nil, 0, err
	}
	return s, o.TTL, nil
}

var publishing = redisconn.NewScript(func() string { return "return redis.call('PUBLISH', ARGV[1], '')" })

func newUUID() string {
	var b [16]byte
	_, _ = crand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// giveCall deletes the lock if me holds it.
func (a *oneKey) giveCall(keys []string, me, member string) redisconn.Call {
	return redisconn.Call{Keys: keys, Args: append([]string{me}, a.dialect.giveArgs(a, keys[0], member)...)}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
