package redislock_test

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// handOn has another session take a lock over, as a server of hasp serve does. It returns the
// session's ticket, and the id of its entry.
func handOn(t *testing.T, l *hasp.Lease, storeURL string) (_ driver.Ticket, id string, _ error) {
	t.Helper()
	r := testkit.Request(l.Name())
	k := session(t, testkit.Open(t, storeURL), time.Hour).Ticket(r)
	v, err := k.(driver.Adopter).Adopt(t.Context(), l.ID(), l.Token())
	if err == nil && (!v.Held || v.Token != l.Token()) {
		t.Errorf("adopted %+v, and the lock has the token %d", v, l.Token())
	}
	return k, r.ID, err
}

// Another library that tries finds the key taken at every moment: first with the old session's
// value, then with the new one's. A compare-and-delete with the old value fails then; with the
// present value it succeeds: the control.
func TestHandOnSetNX(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	url := server.URL() + "?strategy=setnx"
	c := client(t, url)
	for _, name := range []string{"a", "b"} {
		l := testkit.Lock(t, c, name)
		old := do(t, server, "GET", name)
		got, id, err := handOn(t, l, url)
		if err != nil {
			t.Fatal(err)
		}
		value := do(t, server, "GET", name)
		if !strings.HasPrefix(value, id+" ") {
			t.Errorf("the value is %q, adopted was %s", value, id)
		}
		if out := do(t, server, "SET", name, "other", "PX", "60000", "NX"); out != "(nil)" {
			t.Errorf("another library took it: %s", out)
		}
		if out := do(t, server, "EVAL", compareAndDelete, "1", name, old); out != "0" {
			t.Errorf("deleted by the old value: %s", out)
		}
		if name == "a" {
			if err := got.Leave(t.Context()); err != nil {
				t.Error(err)
			}
		} else if out := do(t, server, "EVAL", compareAndDelete, "1", name, value); out != "1" {
			t.Errorf("not deleted by the present value: %s", out)
		}
		if do(t, server, "EXISTS", name) != "0" {
			t.Error("the key is still there")
		}
	}
}

// Redisson's hash has one field at every moment, and its message comes when the new session
// releases.
func TestHandOnRedisson(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	url := server.URL() + "?strategy=redisson"
	c := client(t, url)
	message := subscribe(t, server, "redisson_lock__channel:{a}")
	l := testkit.Lock(t, c, "a")
	old := do(t, server, "HKEYS", "a")
	got, _, err := handOn(t, l, url)
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(do(t, server, "HGETALL", "a"))
	field := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+$`)
	if len(fields) != 2 || fields[0] == old || !field.MatchString(fields[0]) || fields[1] != "1" {
		t.Errorf("the hash is %q, was %q", fields, old)
	}
	if err := got.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if message := message(); message != "0" || do(t, server, "EXISTS", "a") != "0" {
		t.Errorf("released with message %q, and the key exists: %s", message, do(t, server, "EXISTS", "a"))
	}
}

// Without a counter there is no token to hand on. Between clients with and without counters
// nothing is handed on: one would get the token 0 from a store that promises growing tokens.
func TestHandOnFence(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for _, strategy := range []string{"setnx", "redisson"} {
		fenced, plain := server.URL()+"?strategy="+strategy, server.URL()+"?fence=off&strategy="+strategy
		for _, x := range []struct {
			from, to string
			want     error
		}{{plain, plain, nil}, {plain, fenced, driver.ErrGone}, {fenced, plain, driver.ErrGone}} {
			c := client(t, x.from)
			l := testkit.Lock(t, c, strategy)
			got, _, err := handOn(t, l, x.to)
			if !errors.Is(err, x.want) {
				t.Errorf("from %s to %s: %v, want %v", x.from, x.to, err, x.want)
			}
			if err == nil {
				err = got.Leave(t.Context())
			} else {
				err = l.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// With wait=1 an adoption counts when the replica has it, also if it is asked for again on another
// connection, and the entry is ours already: in Redis 8 WAIT answers at once on a connection that
// has written nothing.
func TestHandOnUnconfirmed(t *testing.T) {
	t.Parallel()
	master, replica := newReplica(t), newReplica(t)
	follow(t, replica, master)
	const endless = time.Hour // nothing is renewed
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			storeURL := master.URL() + "?strategy=" + strategy
			r := testkit.Request(strategy)
			v, err := session(t, testkit.Open(t, storeURL), endless).Ticket(r).Enqueue(t.Context())
			must(t, err)
			mine := session(t, testkit.Open(t, storeURL+"&wait=1"), endless).Ticket(testkit.Request(strategy)).(driver.Adopter)
			linked(t, replica)
			must(t, replica.Pause())
			for i := range 3 {
				if got, err := mine.Adopt(t.Context(), r.ID, v.Token); err == nil {
					t.Errorf("request %d: %+v, and the replica has not confirmed it", i, got)
				}
				do(t, master, "CLIENT", "KILL", "TYPE", "normal")
			}
			must(t, replica.Resume())
			testkit.Eventually(t, "the adoption", func() bool {
				got, err := mine.Adopt(t.Context(), r.ID, v.Token)
				return err == nil && got.Held && got.Token == v.Token
			})
		})
	}
}

// An adoption by a server that was started again notes that, as any request does, and is refused for
// as long as the server grants nothing.
func TestHandOnAfterRestart(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			storeURL := server.URL() + "?strategy=" + strategy
			r := testkit.Request("a")
			v := testkit.Held(t, session(t, testkit.Open(t, storeURL), time.Hour).Ticket(r))
			do(t, server, "SAVE")
			must(t, server.Kill())
			must(t, server.Restart())
			mine := session(t, testkit.Open(t, storeURL), 2*time.Hour).Ticket(testkit.Request("a")).(driver.Adopter)
			testkit.Until(t, "a refusal", func() error {
				_, err := mine.Adopt(t.Context(), r.ID, v.Token)
				if errors.Is(err, driver.ErrRefused) {
					return nil
				}
				return err
			})
			mark := map[string]string{"queue": "hasp:mark"}[strategy]
			if mark == "" {
				mark = "hasp:lock:mark"
			}
			if reign := do(t, server, "HGET", mark, "reign"); reign == "" || !strings.Contains(do(t, server, "INFO", "replication"), "master_replid:"+reign) {
				t.Errorf("the mark is still of another process: %q", reign)
			}
		})
	}
}

// Adoptions that the server has refused leave nothing to renew. With full memory a queue refuses
// none.
func TestRefusedAdoptionsAreForgotten(t *testing.T) {
	for _, strategy := range []string{"setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			storeURL := server.URL() + "?strategy=" + strategy
			held := testkit.Request("a")
			v := testkit.Held(t, session(t, testkit.Open(t, storeURL), time.Hour).Ticket(held))
			s := session(t, testkit.Open(t, storeURL), time.Hour)
			do(t, server, "RPUSH", "list", "x")
			do(t, server, "CONFIG", "SET", "maxmemory", "1")
			for name, refusal := range map[string]error{"a": driver.ErrRefused, "list": driver.ErrMismatch} {
				testkit.Until(t, "a refusal", func() error {
					k := s.Ticket(testkit.Request(name))
					_, err := k.(driver.Adopter).Adopt(t.Context(), held.ID, v.Token)
					if errors.Is(err, refusal) {
						return nil
					}
					_ = k.Leave(testkit.Context(t)) // a busy machine: the answer is unknown
					return err
				})
			}
			before := evals(t, server)
			if _, err := s.KeepAlive(t.Context()); err != nil {
				t.Error(err)
			}
			if n := evals(t, server) - before; n != 0 {
				t.Errorf("a session without locks has made %d requests", n)
			}
		})
	}
}

// evals is how many scripts the server has run.
func evals(t *testing.T, server *backends.Redis) (n int) {
	t.Helper()
	for line := range strings.Lines(do(t, server, "INFO", "commandstats")) {
		if command, after, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls="); command == "eval" || command == "evalsha" {
			count, _, _ := strings.Cut(after, ",")
			calls, err := strconv.Atoi(count)
			must(t, err)
			n += calls
		}
	}
	return n
}
