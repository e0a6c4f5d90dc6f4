package redislock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// busy is a backend that a program has used a moment ago, and some requests of it that are under
// way: for a dial, behind a proxy, or to be sent again by a redirection.
func busy(t *testing.T, server *backends.Redis, strategy redislock.Strategy) (*lateConn, driver.Backend) {
	t.Helper()
	own, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
	must(t, err)
	t.Cleanup(own.Close)
	conn := &lateConn{Conn: redisconn.FromRueidis(own)}
	b, err := redisconn.NewBackend(conn, &redislock.Options{Strategy: strategy})
	must(t, err)
	s := session(t, b)
	for range 20 {
		ticket := s.Ticket(testkit.Request("other"))
		testkit.Held(t, ticket)
		conn.late = func(redisconn.Call) bool { return true }
		_, err := s.Ticket(testkit.Request("a")).Enqueue(t.Context())
		conn.late = nil
		if err == nil {
			t.Fatal("answered")
		}
		must(t, ticket.Leave(t.Context()))
	}
	return conn, b
}

// granted reports whether an answer of one of the scripts says that the lock is ours.
func granted(r redisconn.Reply) bool {
	v := r.Value
	if wrapped, ok := v.([]any); ok && len(wrapped) > 0 && wrapped[0] == "mark" {
		v = wrapped[len(wrapped)-1]
	}
	if parts, ok := v.([]any); ok {
		return len(parts) == 2 && parts[0] == int64(1)
	}
	return v != nil && r.Err == nil
}

// What a client knew when it made a request is no proof when the request arrives: at a server that
// was started again meanwhile, with a file from before a grant, or at one that was promoted.
func TestRequestsThatArriveElsewhere(t *testing.T) {
	for _, strategy := range []redislock.Strategy{redislock.StrategyQueue, redislock.StrategySetNX, redislock.StrategyRedisson} {
		t.Run(string(strategy)+"/restarted", func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			conn, _ := busy(t, server, strategy)
			_, err := server.Do("SAVE")
			must(t, err)
			hold(t, server, strategy)
			must(t, server.Kill())
			must(t, server.Restart())
			arrive(t, conn, conn.Conn)
		})
		t.Run(string(strategy)+"/promoted", func(t *testing.T) {
			t.Parallel()
			server, replica := backends.StartRedis(t, backends.RedisOptions{}), backends.StartRedis(t, backends.RedisOptions{})
			conn, _ := busy(t, server, strategy)
			host, port, _ := strings.Cut(server.Addr, ":")
			_, err := replica.Do("REPLICAOF", host, port)
			must(t, err)
			testkit.Eventually(t, "the replica", func() bool {
				info, err := replica.Do("INFO", "replication")
				return err == nil && strings.Contains(info, "master_link_status:up")
			})
			_, err = replica.Do("REPLICAOF", "NO", "ONE")
			must(t, err)
			hold(t, server, strategy)
			own, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{replica.Addr}, DisableCache: true})
			must(t, err)
			t.Cleanup(own.Close)
			arrive(t, conn, redisconn.FromRueidis(own))
		})
	}
}

// hold has another client hold the lock.
func hold(t *testing.T, server *backends.Redis, strategy redislock.Strategy) {
	t.Helper()
	b := testkit.Open(t, server.URL()+"?strategy="+string(strategy))
	testkit.Held(t, session(t, b).Ticket(testkit.Request("a")))
}

// arrive has the requests arrive at a server.
func arrive(t *testing.T, conn *lateConn, at redisconn.Conn) {
	t.Helper()
	for i, send := range conn.kept {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var r redisconn.Reply
		for r = send(at); r.Err != nil && ctx.Err() == nil; r = send(at) { // the server is starting
			time.Sleep(20 * time.Millisecond)
		}
		if r.Err != nil || granted(r) {
			t.Errorf("request %d: %+v", i, r)
		}
	}
}

// unreplicated is a connection on which each script counts as confirmed. It loses the third, and the
// first takes a while.
type unreplicated struct {
	redisconn.Conn
	to        redisconn.Conn // where scripts arrive
	requests  int
	meanwhile func()
}

var errLost = errors.New("lost")

func (c *unreplicated) Eval(ctx context.Context, s *redisconn.Script, call redisconn.Call, _ int) redisconn.Reply {
	c.requests++
	if c.requests == 3 {
		return redisconn.Reply{Err: errLost}
	}
	first := c.requests == 1
	r := c.to.Eval(ctx, s, call, 0)
	if first {
		c.meanwhile()
	}
	return r
}

// The replicas of one master have confirmed its mark. Meanwhile another request has learned the mark
// of a newer master, to which the confirmation goes: that is not confirmed by it.
func TestConfirmedIsTheMarkThatWasTold(t *testing.T) {
	t.Parallel()
	var conns []redisconn.Conn
	var servers []*backends.Redis
	for range 2 {
		server := backends.StartRedis(t, backends.RedisOptions{})
		_, err := server.Do("FLUSHALL") // so that it may have forgotten grants
		must(t, err)
		own, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
		must(t, err)
		t.Cleanup(own.Close)
		servers, conns = append(servers, server), append(conns, redisconn.FromRueidis(own))
	}
	conn := &unreplicated{Conn: conns[0], to: conns[0]}
	b, err := redisconn.NewBackend(conn, &redislock.Options{Replicas: 1})
	must(t, err)
	s := session(t, b)
	conn.meanwhile = func() {
		conn.to = conns[1]
		if _, err := s.Ticket(testkit.Request("b")).Enqueue(t.Context()); !errors.Is(err, errLost) {
			t.Errorf("the other request, whose confirmation is lost: %v", err)
		}
	}
	_, err = s.Ticket(testkit.Request("a")).Enqueue(t.Context())
	must(t, err)
	till, err := servers[1].Do("HGET", "hasp:mark", "till")
	must(t, err)
	if till != "0" || conn.requests != 4 {
		t.Errorf("after %d requests the newer master grants from %s on", conn.requests, till)
	}
}
