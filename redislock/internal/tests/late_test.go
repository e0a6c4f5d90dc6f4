package redislock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// lateConn is a connection on which a request can be late: its caller gets a time-out, and the
// request is carried out when the test says so.
type lateConn struct {
	redisconn.Conn
	late func(redisconn.Call) bool
	kept []func(at redisconn.Conn) redisconn.Reply
}

func (c *lateConn) Eval(ctx context.Context, s *redisconn.Script, call redisconn.Call, replicas int) redisconn.Reply {
	if c.late == nil || !c.late(call) {
		return c.Conn.Eval(ctx, s, call, replicas)
	}
	c.kept = append(c.kept, func(at redisconn.Conn) redisconn.Reply {
		return at.Eval(context.WithoutCancel(ctx), s, call, replicas)
	})
	return redisconn.Reply{Err: context.DeadlineExceeded}
}

// session is one that outlives the test.
func session(t *testing.T, b driver.Backend) driver.Session {
	t.Helper()
	t.Cleanup(func() { _ = b.Close() }) // after the session
	return testkit.Session(t, b, time.Minute, nil)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A request to publish that arrives after the next one, which is confirmed, changes nothing. (The
// older value stayed for as long as the leader led.) Neither does one that arrives when the entry
// has another owner, whose versions are counted anew.
func TestLatePublish(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	own, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
	must(t, err)
	t.Cleanup(own.Close)
	conn := &lateConn{Conn: redisconn.FromRueidis(own)}
	b, err := redisconn.NewBackend(conn, (*redislock.Options)(nil))
	must(t, err)
	s := session(t, b)
	r := testkit.Request("a")
	r.Value = []byte("0:first") // with the separator of the version
	leader := s.Ticket(r)
	v, err := leader.Enqueue(t.Context())
	must(t, err)
	value := func() string {
		t.Helper()
		list, err := b.List(t.Context(), "a", 0)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return string(list[0].Value)
	}
	if got := value(); got != "0:first" {
		t.Errorf("the first value is %q", got)
	}
	publish := func(ticket driver.Ticket, value string) error {
		return ticket.(driver.Publisher).Publish(t.Context(), []byte(value))
	}
	conn.late = func(c redisconn.Call) bool { return slices.Contains(c.Args, "old") }
	if err := publish(leader, "old"); err == nil {
		t.Fatal("the request is late, and confirmed")
	}
	must(t, publish(leader, "new: confirmed"))
	late := conn.kept[0]
	if r := late(conn.Conn); r.Err != nil {
		t.Fatal(r.Err)
	}
	if got := value(); got != "new: confirmed" {
		t.Errorf("the confirmed value has become %q", got)
	}

	adopter := session(t, testkit.Open(t, server.URL())).Ticket(testkit.Request("a"))
	_, err = adopter.(driver.Adopter).Adopt(t.Context(), r.ID, v.Token)
	must(t, err)
	if got := value(); got != "new: confirmed" {
		t.Errorf("handed on with the value %q", got)
	}
	must(t, publish(adopter, "the adopter's"))
	late(conn.Conn)
	if got := value(); got != "the adopter's" {
		t.Errorf("the adopter's value has become %q", got)
	}
}
