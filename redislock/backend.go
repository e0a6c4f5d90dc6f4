package redislock

import (
	"context"
	"embed"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
	"github.com/hasplock/hasp/redislock/internal/quarantine"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

//go:embed queue/*.lua redisson/*.lua
var luaFiles embed.FS

// lua is a file of a script. A script has a start, which may answer the usual case alone, common
// functions, and the rest. Scripts that grant or extend begin with mark.lua of package quarantine.
func lua(name string) func() string {
	return func() string {
		b, err := luaFiles.ReadFile(name + ".lua")
		if err != nil {
			panic(err) // embedded: one of the names below is wrong
		}
		return string(b)
	}
}

var (
	common          = lua("queue/queue")
	enterScript     = quarantine.NewScript(lua("queue/enterstart"), common, lua("queue/enter"))
	leaveScript     = quarantine.NewScript(lua("queue/leavestart"), common, lua("queue/leave"))
	renewScript     = quarantine.NewScript(lua("queue/names"), common, lua("queue/renew"))
	publishScript   = quarantine.NewScript(lua("queue/name"), common, lua("queue/publish"))
	downgradeScript = quarantine.NewScript(lua("queue/name"), common, lua("queue/downgrade"))
	adoptScript     = quarantine.NewScript(lua("queue/name"), common, lua("queue/adopt"))
	listScript      = redisconn.NewScript(lua("queue/list"))
	frontScript     = redisconn.NewScript(lua("queue/front"))
	watchScript     = quarantine.NewScript(lua("queue/name"), common, lua("queue/watch"))
)

// store has the common part of the strategies.
type store struct {
	conn  redisconn.Conn
	guard *quarantine.Guard
	opts  Options
}

// newStore makes a store whose marks have keys with the prefix.
func newStore(conn redisconn.Conn, markPrefix string, o Options) store {
	return store{conn, quarantine.NewGuard(conn, markPrefix, o.NoQuarantine, o.Replicas > 0), o}
}

func (s *store) String() string { return s.conn.String() }

func (s *store) Close() error {
	s.conn.Close()
	return nil
}

// queue is strategy=queue.
type queue struct{ store }

// minTTL leaves time for two renewals on a slow network besides the least margin.
const minTTL = 200 * time.Millisecond

func (q *queue) Traits() driver.Traits {
	return driver.Traits{
		FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true, Push: true,
		Forgets: true, Liveness: driver.Leased, MinTTL: minTTL,
	}
}

// Quarantine asks the server of the name.
func (q *queue) Quarantine(ctx context.Context, name string) (time.Duration, error) {
	return q.guard.Left(ctx, q.key(name))
}

// Open subscribes to the session's channel: one subscription for all names. Each entry has its
// own expiry, so the store has no other state of a session.
func (q *queue) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	keep, err := q.opts.keep(o.TTL)
	if err == nil {
		err = q.opts.mayWait(ctx, q.conn)
	}
	if err != nil {
		return nil, 0, err
	}
	s := newSession(q, o, keep)
	l := &redisconn.Listener{Conn: q.conn, Channel: q.channel(s.id), Message: s.Message, Subscribed: s.renewWaiters}
	if err := l.Start(ctx, s.Done); err != nil {
		s.End()
		return nil, 0, err
	}
	return s, o.TTL, nil
}

// maxEncoded bounds the name's part of a key: longer names are hashed.
const maxEncoded = 255

// key puts the name into a hash tag, so that a name's key and channel belong to one slot of a
// cluster. EncodeName encodes braces, so a name cannot choose its slot.
func (q *queue) key(name string) string {
	encoded, _ := driver.EncodeName(name, maxEncoded)
	return q.opts.Prefix + "{" + encoded + "}"
}

// fullName is the name to store beside a key from which it cannot be decoded.
func (q *queue) fullName(name string) string {
	if _, reversible := driver.EncodeName(name, maxEncoded); reversible {
		return ""
	}
	return name
}

// channel is where a session listens. The scripts build the same name from the key.
func (q *queue) channel(session string) string { return q.opts.Prefix + "s:" + session }

func (s *session) leaveCall(t *ticket) redisconn.Call {
	return redisconn.Call{Keys: []string{t.Extra.key}, Args: []string{s.own(t)}}
}

// own is how a script finds an entry of this session, and no other's that has the same ID.
func (s *session) own(t *ticket) string { return t.Request.ID + " " + s.id }

func (q *queue) leave(ctx context.Context, c redisconn.Call) (there bool, err error) {
	r := q.guard.Eval(ctx, leaveScript, c, 0)
	if redisconn.Answered(r.Err) == "WRONGTYPE" {
		return false, nil // another program has overwritten the key, and our entry with it
	}
	return r.Value == int64(1), redisconn.Refusal(r.Err)
}

// answer reads the answer of enterScript. again: the lock is busy, but expired holders may still
// block; ask again at once.
func answer(r driver.Request, reply redisconn.Reply) (a pushqueue.Answer, again bool, err error) {
	if reply.Err != nil {
		return a, false, wrongType(r.Name, reply.Err)
	}
	if seq, ok := reply.Value.(int64); ok {
		return pushqueue.Answer{State: pushqueue.Held, Seq: uint64(seq)}, false, nil
	}
	parts, _ := reply.Value.([]any)
	parts = append(parts, make([]any, 4)...) // no answer has more: what is missing is nil
	number := func(i int) int64 { n, _ := parts[i].(int64); return n }
	text := func(i int) string { s, _ := parts[i].(string); return s }
	switch text(0) {
	case "wait":
		retry := time.Duration(number(2)) * time.Microsecond
		return pushqueue.Answer{State: pushqueue.Waits, Seq: uint64(number(1)), Retry: retry, Place: int(number(3))}, false, nil
	case "busy":
		var holder driver.Entry
		readDetails(&holder, text(1))
		return pushqueue.Answer{State: pushqueue.Busy, Holder: holder.Owner}, number(2) == 1, nil
	case "closed":
		left := time.Duration(number(1)) * time.Microsecond
		return pushqueue.Answer{State: pushqueue.Busy, Quarantine: left}, false, nil
	case "gone":
		return pushqueue.Answer{State: pushqueue.Gone}, false, nil
	case "mismatch":
		return a, false, &driver.MismatchError{Name: r.Name, Want: r.Capacity, Found: number(1)}
	case "other":
		return a, false, fmt.Errorf("%w: another name has the same hash", driver.ErrMismatch)
	case "foreign":
		return a, false, errForeign(r.Name)
	}
	return a, false, fmt.Errorf("unexpected answer %v", reply.Value)
}
