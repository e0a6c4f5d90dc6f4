package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// repeating makes each request that replicas shall confirm again, as a client does whose answer was
// lost, and demands that it writes unless its answer is no: WAIT confirms the last write of a
// connection, whichever that was. It asks no replicas.
type repeating struct {
	redisconn.Conn
	t      *testing.T
	server *backends.Redis
	asked  map[*redisconn.Script]int
}

func (c repeating) Eval(ctx context.Context, s *redisconn.Script, call redisconn.Call, replicas int) redisconn.Reply {
	r := c.Conn.Eval(ctx, s, call, 0)
	if replicas > 0 {
		c.again(s, call, func() redisconn.Reply { return c.Conn.Eval(ctx, s, call, 0) })
	}
	return r
}

func (c repeating) EvalAll(ctx context.Context, s *redisconn.Script, calls []redisconn.Call, replicas int) []redisconn.Reply {
	rs := c.Conn.EvalAll(ctx, s, calls, 0)
	if replicas > 0 {
		for _, call := range calls {
			c.again(s, call, func() redisconn.Reply { return c.Conn.Eval(ctx, s, call, 0) })
		}
	}
	return rs
}

func (c repeating) again(s *redisconn.Script, call redisconn.Call, send func() redisconn.Reply) {
	before := c.writes()
	r := send()
	no := r.Value == int64(0)
	if parts, _ := r.Value.([]any); len(parts) > 0 {
		no = slices.Contains([]any{int64(0), "busy", "gone", "closed", "mismatch"}, parts[0])
	}
	if r.Err != nil || no {
		return
	}
	c.asked[s]++
	if c.writes() == before {
		title, _, _ := strings.Cut(s.Text(), "\n")
		c.t.Errorf("a request is answered %v, and has written nothing (of %d scripts, the one that begins with %q): %q", r.Value, len(c.asked), title, call.Args)
	}
}

// writes counts the changes that the server would replicate.
func (c repeating) writes() (n int) {
	c.t.Helper()
	info, err := c.server.Do("INFO", "persistence")
	must(c.t, err)
	_, rest, _ := strings.Cut(info, "rdb_changes_since_last_save:")
	_, err = fmt.Sscan(rest, &n)
	must(c.t, err)
	return n
}

// Every script that is sent with WAIT writes on each path that counts, also when it is repeated.
func TestConfirmedScriptsWrite(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{Config: []string{`save ""`}})
	for strategy, scripts := range map[redislock.Strategy]int{
		redislock.StrategyQueue: 4,                                // enter, renew, publish, adopt
		redislock.StrategySetNX: 2, redislock.StrategyRedisson: 2, // take, adopt
	} {
		t.Run(string(strategy), func(t *testing.T) {
			open, err := redisconn.Open(t.Context(), redisconn.Config{Addrs: []string{server.Addr}, Label: "redis"})
			must(t, err)
			conn := repeating{open, t, server, map[*redisconn.Script]int{}}
			b, err := redisconn.NewBackend(conn, &redislock.Options{Strategy: strategy, Replicas: 1, NoQuarantine: true})
			must(t, err)
			mine, other := session(t, b), session(t, b)
			r := testkit.Request("a")
			holder := mine.Ticket(r)
			held := testkit.Held(t, holder)
			for i := range 3 { // one waits alone, one behind it, one far behind
				v, err := other.Ticket(testkit.Request("a")).Enqueue(t.Context())
				must(t, err)
				if v.Held {
					t.Fatalf("waiter %d holds", i)
				}
			}
			testkit.Held(t, other.Ticket(testkit.Request("another")))
			for _, s := range []driver.Session{mine, other} {
				_, err := s.KeepAlive(t.Context())
				must(t, err)
			}
			if p, ok := holder.(driver.Publisher); ok && b.Traits().Values {
				must(t, p.Publish(t.Context(), []byte("x")))
				must(t, p.Publish(t.Context(), []byte("x")))
			}
			if b.Traits().Shared {
				for range 2 {
					reader := testkit.Request("readers")
					reader.Units = 1
					testkit.Held(t, mine.Ticket(reader))
				}
				_, err := mine.KeepAlive(t.Context())
				must(t, err)
			}
			v, err := other.Ticket(testkit.Request("a")).(driver.Adopter).Adopt(t.Context(), r.ID, held.Token)
			must(t, err)
			if !v.Held {
				t.Errorf("adopted: %+v", v)
			}
			if len(conn.asked) != scripts {
				t.Errorf("%d scripts were sent with WAIT and answered yes, want %d", len(conn.asked), scripts)
			}
		})
	}
}

// So does the script by which redlock publishes.
func TestConfirmedPublishWrites(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{Config: []string{`save ""`}})
	open, err := redisconn.Open(t.Context(), redisconn.Config{Addrs: []string{server.Addr}, Label: "redis"})
	must(t, err)
	defer open.Close()
	_, err = server.Do("SET", "a", "me 1:text", "PX", "60000")
	must(t, err)
	conn := repeating{open, t, server, map[*redisconn.Script]int{}}
	for _, version := range []string{"2", "1"} { // a newer one, and one that is older
		r := conn.Eval(t.Context(), setnx.Publish, redisconn.Call{Keys: []string{"a", "c", "w"}, Args: []string{"me ", version, version + ":new"}}, 1)
		if r.Err != nil || r.Value != int64(1) {
			t.Errorf("version %s: %v", version, r)
		}
	}
	if conn.asked[setnx.Publish] != 2 {
		t.Errorf("%d of 2 were answered yes", conn.asked[setnx.Publish])
	}
}
