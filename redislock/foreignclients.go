package redislock

import (
	"context"
	"fmt"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// The check for foreign locks reads at most maxKeys keys and reports at most maxForeign of them.
const (
	maxKeys    = 1000
	maxForeign = 5
)

// foreignClients looks for keys of this strategy that have something else: two clients that use
// different strategies or libraries on one name do not exclude each other, or refuse each
// other's keys.
func (q *queue) foreignClients(ctx context.Context) ([]driver.Finding, error) {
	s := &foreignClientCheck{conn: q.conn, own: q.opts.Strategy}
	for _, kind := range []string{"string", "hash"} {
		err := scan(ctx, q.conn, q.opts.Prefix+"{*}", kind, oneByOne(func(key string) (bool, error) {
			return s.check(ctx, q.encoded(key), key)
		}))
		if err != nil {
			return s.found, err
		}
	}
	return s.found, nil
}

// foreignClients is the same for a strategy whose keys look like any other: the counters tell
// which names hasp has taken.
func (a *oneKey) foreignClients(ctx context.Context) ([]driver.Finding, error) {
	if a.opts.NoFence {
		return nil, nil
	}
	s := &foreignClientCheck{conn: a.conn, own: a.opts.Strategy}
	err := scan(ctx, a.conn, a.opts.FencePrefix+"{*", "string", oneByOne(func(counter string) (bool, error) {
		key := setnx.Untag(strings.TrimPrefix(counter, a.opts.FencePrefix))
		name, ours := strings.CutPrefix(key, a.opts.Prefix)
		if !ours {
			return true, nil
		}
		return s.check(ctx, name, key)
	}))
	return s.found, err
}

// foreignClientCheck collects findings.
type foreignClientCheck struct {
	conn  redisconn.Conn
	own   Strategy
	seen  int
	found []driver.Finding
}

// check examines one key. more is false when enough was seen.
func (s *foreignClientCheck) check(ctx context.Context, name, key string) (more bool, err error) {
	s.seen++
	r := s.conn.Eval(ctx, setnx.Format, redisconn.Call{Keys: []string{key}}, 0)
	if r.Err != nil {
		return false, r.Err
	}
	what, shared := setnx.Describe(r.Value)
	if what != "" && !strings.HasPrefix(shared, "strategy="+string(s.own)) {
		f := driver.Finding{
			Level: driver.Warn, Subject: "dialects", Text: fmt.Sprintf("the key %q of the lock %q has %s; this client uses strategy=%s", key, name, what, s.own),
			Cure: "one format for each name: choose another name or prefix",
		}
		if shared != "" {
			f.Cure = "one format for each name: " + shared + ", or another name or prefix"
		}
		s.found = append(s.found, f)
	}
	return s.seen < maxKeys && len(s.found) < maxForeign, nil
}
