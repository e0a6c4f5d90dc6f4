package redislock

import (
	"context"
	"fmt"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// The check for foreign locks reads at most maxKeys keys of a type and reports at most maxForeign of
// them.
const (
	maxKeys    = 1000
	maxForeign = 5
)

// foreignClients looks for keys of this strategy that have something else: two clients that use
// different strategies or libraries on one name do not exclude each other, or refuse each
// other's keys.
func (q *queue) foreignClients(ctx context.Context) (found []driver.Finding, err error) {
	for _, kind := range []string{"string", "hash"} {
		some, err := q.examineKeys(ctx, q.opts.Prefix+"{*}", kind, func(key string) (string, string, bool) { return q.encoded(key), key, true })
		if found = append(found, some...); err != nil {
			return found, err
		}
	}
	return found, nil
}

// foreignClients is the same for a strategy whose keys look like any other: the counters tell
// which names hasp has taken.
func (a *oneKey) foreignClients(ctx context.Context) ([]driver.Finding, error) {
	if a.opts.NoFence {
		return nil, nil
	}
	return a.examineKeys(ctx, a.opts.FencePrefix+"{*", "string", func(counter string) (name, key string, ours bool) {
		name, ours = a.counted(counter)
		return name, a.opts.Prefix + name, ours
	})
}

// examineKeys examines the locks that the keys with the pattern are of.
func (s *store) examineKeys(ctx context.Context, pattern, kind string, of func(key string) (name, lock string, ours bool)) (found []driver.Finding, err error) {
	seen := 0
	for keys, err := range scan(ctx, s.conn, pattern, kind) {
		if err != nil {
			return found, err
		}
		for _, key := range keys {
			name, lock, ours := of(key)
			if !ours {
				continue
			}
			r := s.conn.Eval(ctx, setnx.Format, redisconn.Call{Keys: []string{lock}}, 0)
			if r.Err != nil {
				return found, r.Err
			}
			found = append(found, examineLock(s.opts.Strategy, name, lock, r.Value)...)
			if seen++; seen == maxKeys || len(found) >= maxForeign {
				return found, nil
			}
		}
	}
	return found, nil
}

// examineLock reads the answer of setnx.Format.
func examineLock(own Strategy, name, key string, answer any) []driver.Finding {
	var x doctor.Report
	parts, _ := answer.([]any)
	x.When(own != StrategyQueue && len(parts) > 2 && parts[2] == int64(-1), driver.Warn, "expiry",
		fmt.Sprintf("the key %q of the lock %q never expires: if its holder has died, it is held for good", key, name), "remove the key if its holder is gone")
	if err := otherFormat(own, key, answer); err != nil {
		x.Add(driver.Bad, "format", strings.TrimPrefix(err.Error(), driver.ErrInvalid.Error()+": "), "one version of hasp for all clients")
		return x.Found
	}
	what, shared := setnx.Describe(answer)
	cure := "choose another name or prefix"
	if shared != "" {
		cure = shared + ", or another name or prefix"
	}
	x.When(what != "" && !strings.HasPrefix(shared, "strategy="+string(own)), driver.Warn, "dialects",
		fmt.Sprintf("the key %q of the lock %q has %s; this client uses strategy=%s", key, name, what, own), "one format for each name: "+cure)
	return x.Found
}
