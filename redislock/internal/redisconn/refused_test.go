package redisconn_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

var one = redisconn.NewScript(func() string { return "return 1" })

// refusing is a server that greets, and then answers every command with an error.
type refusing struct {
	net.Listener
	answer atomic.Value // string: the error, "" while it is well
	mu     sync.Mutex
	got    []string // commands that it refused
}

func startRefusing(t *testing.T) *refusing {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &refusing{Listener: l}
	s.answer.Store("")
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
	return s
}

func (s *refusing) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		args, err := command(r)
		if err != nil {
			return
		}
		refusal := s.answer.Load().(string)
		name := strings.ToUpper(args[0])
		// A replica greets, and so a client that dials anew gets as far as its request.
		greets := strings.HasPrefix(refusal, "READONLY") || strings.HasPrefix(refusal, "MASTERDOWN")
		switch {
		case refusal != "" && !(greets && slices.Contains([]string{"HELLO", "CLIENT", "PING", "CLUSTER"}, name)):
			s.mu.Lock()
			s.got = append(s.got, name)
			s.mu.Unlock()
			fmt.Fprintf(c, "-%s\r\n", refusal)
		case name == "HELLO":
			io.WriteString(c, "%3\r\n+server\r\n+redis\r\n+version\r\n+7.2.0\r\n+proto\r\n:3\r\n")
		case name == "CLUSTER":
			io.WriteString(c, "-ERR This instance has cluster support disabled\r\n")
		case name == "SUBSCRIBE":
			fmt.Fprintf(c, ">3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(args[1]), args[1])
		case name == "INFO":
			io.WriteString(c, "+\r\n")
		case name == "EVALSHA", name == "EVAL", name == "WAIT":
			io.WriteString(c, ":1\r\n")
		default:
			io.WriteString(c, "+OK\r\n")
		}
	}
}

// command reads an array of strings.
func command(r *bufio.Reader) ([]string, error) {
	number := func(kind byte) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil || line[0] != kind {
			return 0, errors.Join(err, fmt.Errorf("%q", line))
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		args[i] = string(b[:size])
	}
	return args, nil
}

// refusals are the classes of errors by which a server refuses commands, in its own words. The
// client library must survive each at every command that we send: it panicked at the answer to the
// PING that goes with UNSUBSCRIBE.
var refusals = map[string]struct {
	text string
	want error // nil: none of the sentinels, so that the core asks again
}{
	"BUSY":        {"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", nil},
	"MISCONF":     {"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", driver.ErrRefused},
	"LOADING":     {"LOADING Redis is loading the dataset in memory", nil},
	"MASTERDOWN":  {"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", driver.ErrRefused},
	"READONLY":    {"READONLY You can't write against a read only replica.", driver.ErrRefused},
	"OOM":         {"OOM command not allowed when used memory > 'maxmemory'.", driver.ErrRefused},
	"NOAUTH":      {"NOAUTH Authentication required.", driver.ErrInvalid},
	"NOPERM":      {"NOPERM User x has no permissions to run the 'evalsha' command", driver.ErrInvalid},
	"EXECABORT":   {"EXECABORT Transaction discarded because of previous errors.", nil},
	"CLUSTERDOWN": {"CLUSTERDOWN The cluster is down", nil},
	"TRYAGAIN":    {"TRYAGAIN Multiple keys request during rehashing of slot", nil},
	"NOREPLICAS":  {"NOREPLICAS Not enough good replicas to write.", driver.ErrRefused},
}

func TestEveryRefusal(t *testing.T) {
	for class, c := range refusals {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			s := startRefusing(t)
			conn, err := redisconn.Open(t.Context(), redisconn.Config{Addrs: []string{s.Addr().String()}, Label: "redis://fake", ConnectTimeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			call := redisconn.Call{Keys: []string{"k"}}
			listening, leave := context.WithCancel(ctx)
			up, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				ended <- conn.Subscribe(listening, "first", sync.OnceFunc(func() { close(up) }), func(string) {})
			}()
			<-up
			if r := conn.Eval(ctx, one, call, 1); r.Err != nil {
				t.Fatal(r.Err)
			}
			if r := conn.Eval(ctx, one, call, 0); r.Err != nil {
				t.Fatal(r.Err)
			}

			s.answer.Store(c.text)
			check := func(what string, err error) {
				t.Helper()
				if redisconn.Answered(err) != class {
					t.Errorf("%s: %v, not the server's answer", what, err)
				}
				if err := redisconn.Refusal(err); c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("%s: %v is not %v", what, err, c.want)
				}
			}
			check("a script", conn.Eval(ctx, one, call, 0).Err)
			check("a script with replicas", conn.Eval(ctx, one, call, 1).Err)
			for _, r := range conn.EvalAll(ctx, one, slices.Repeat([]redisconn.Call{call}, 3), 0) {
				check("one of several", r.Err)
			}
			if redisconn.Replica(redisconn.ServerError(c.text)) {
				ended <- <-ended // all connections were closed: the next subscription must not find this one
			}
			check("another subscription", conn.Subscribe(ctx, "second", func() {}, func(string) {}))
			err = conn.Each(ctx, func(n redisconn.Node) error { return n.Do(ctx, "ROLE").Err })
			check("a question", err)
			leave() // of a channel, while the server refuses
			<-ended
			check("a script after that", conn.Eval(ctx, one, call, 0).Err)

			s.answer.Store("")
			if r := conn.Eval(ctx, one, call, 0); r.Err != nil {
				t.Errorf("the server is well again: %v", r.Err)
			}
			s.answer.Store(c.text)
			conn.Close() // at a normal end, while it refuses
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, sent := range []string{"EVALSHA", "SUBSCRIBE", "ROLE"} {
				if !slices.Contains(s.got, sent) {
					t.Errorf("%s was not refused: %q", sent, s.got)
				}
			}
			if slices.Contains(s.got, "UNSUBSCRIBE") {
				t.Errorf("UNSUBSCRIBE was sent: %q", s.got)
			}
		})
	}
}
