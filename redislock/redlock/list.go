package redlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// List shows the value, of any library, that is on a majority, or may be with the servers that do
// not answer. It does not list waiters.
func (b *store) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	keys, err := b.keys(name)
	if err != nil {
		return nil, err
	}
	values, errs, err := b.read(ctx, redisconn.Call{Keys: keys})
	if err != nil {
		return nil, err
	}
	away := 0
	for _, err := range errs {
		if err != nil {
			away++
		}
	}
	copies := map[string]int{}
	newest := map[string]held{}
	var most held
	for _, v := range values {
		h, _ := parse(name, v)
		if v == "" {
			continue
		}
		if old, seen := newest[h.me]; !seen || h.version > old.version {
			newest[h.me] = h
		}
		if copies[h.me]++; copies[h.me] > copies[most.me] {
			most = h
		}
	}
	if n := copies[most.me]; n == 0 || n+away < b.quorum {
		return nil, nil
	}
	return []driver.Entry{newest[most.me].entry}, nil
}

// How long a reader waits for the servers beyond a majority, and for the majority.
const (
	minorityTimeout = 500 * time.Millisecond
	readBound       = 5 * time.Second
)

var errSilent = errors.New("no answer")

// read asks all servers and returns what the key is at each; errs are of those that have
// not answered in time. A majority is needed. Only the next request finds that a server
// has closed an idle connection, so that each server is asked twice.
func (b *store) read(ctx context.Context, call redisconn.Call) (values []string, errs []error, _ error) {
	type answer struct {
		node int
		redisconn.Reply
	}
	answers := make(chan answer, len(b.nodes)) // one slot for each: the reader may have gone
	f := newRequestGroup(b.done, readBound)
	for i, n := range b.nodes {
		f.do(func(ctx context.Context) {
			r := n.eval(ctx, setnx.Peek, call)
			if r.Err != nil && redisconn.Answered(r.Err) == "" && ctx.Err() == nil {
				r = n.eval(ctx, setnx.Peek, call)
			}
			answers <- answer{i, r}
		})
	}
	f.done()
	values, errs = make([]string, len(b.nodes)), slices.Repeat([]error{errSilent}, len(b.nodes))
	timer := time.NewTimer(minorityTimeout)
	defer timer.Stop()
	for waited, open := false, len(b.nodes); open > 0 && !(waited && b.enough(errs) == nil); {
		select {
		case a := <-answers: // all come: the requests have an end
			open--
			parts, _ := a.Value.([]any)
			if len(parts) > 1 {
				values[a.node], _ = parts[0].(string)
			}
			if errs[a.node] = a.Err; redisconn.Answered(a.Err) == "WRONGTYPE" {
				errs[a.node] = nil // that is no lock
			}
		case <-timer.C:
			waited = true
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return values, errs, redisconn.Refusal(b.enough(errs))
}
