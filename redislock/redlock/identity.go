package redlock

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// identity is the name of a set of servers, in every spelling and order of their addresses.
//
// Each server has a name, a random text in a key, as with strategy=setnx. The name of the set is
// made once from the names of all servers, which must all answer for that, and stored on every
// server. From then on the name that a majority has stored counts, so that a minority may be away.
// The same names make the same name of the set, so two clients that make it at once agree.
//
// A server that forgets its data forgets the name of the set, too. A client that knows it stores it
// again, with its renewals. If a majority forgets before that, the servers get new names and so
// does the set; a client that knows the old name keeps it.
type identity struct {
	store *store

	mu     sync.Mutex
	known  string // the set's name, if Identity was called
	noting bool
}

// Identity implements driver.Identifier.
func (b *store) Identity(ctx context.Context) (string, error) {
	id := &b.identity
	id.mu.Lock()
	known := id.known
	id.mu.Unlock()
	if known == "" {
		var err error
		if known, err = id.find(ctx); err != nil {
			return "", err
		}
		id.mu.Lock()
		if id.known == "" {
			id.known = known
		}
		known = id.known
		id.mu.Unlock()
	}
	return "redlock/" + known + "/" + b.opts.Prefix, nil
}

// find asks all servers, and has them store a name for their set if a majority has none.
func (id *identity) find(ctx context.Context) (string, error) {
	b := id.store
	named, err := id.ask(ctx, strings.ToLower(rand.Text()), "", "")
	if err != nil {
		return "", err
	}
	if set := named.common(b.quorum); set != "" {
		return set, nil
	}
	if named.answered < len(b.nodes) {
		return "", fmt.Errorf("%d of %d servers answer (%w): to be distinguished from others the set needs a name, which is made when all of them do, once",
			named.answered, len(b.nodes), b.reason(named.errs, 0))
	}
	set := nameOf(named.own)
	if named, err = id.ask(ctx, "", set, "replace"); err != nil {
		return "", err
	}
	if named.common(b.quorum) != set {
		return "", fmt.Errorf("%d of %d servers have noted the name of their set, and %d are needed", named.answered, len(b.nodes), b.quorum)
	}
	return set, nil
}

// nameOf makes the name of the set from those of the servers.
func nameOf(own []string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(own)), " ")))
	return hex.EncodeToString(sum[:16])
}

// names are the servers' answers.
type names struct {
	own, set []string
	errs     []error
	answered int
}

// common returns the name of the set that a majority has stored, or "".
func (n *names) common(quorum int) string {
	times := map[string]int{}
	for _, s := range n.set {
		if times[s]++; s != "" && times[s] >= quorum {
			return s
		}
	}
	return ""
}

// ask asks all servers, and returns as soon as a majority has the same name for the set, or
// when all have answered or had their time.
func (id *identity) ask(ctx context.Context, own, set, how string) (*names, error) {
	b := id.store
	type answer struct {
		node int
		redisconn.Reply
	}
	call := redisconn.Call{Keys: []string{setnx.IdentityKey, setnx.IdentityKey + ":set"}, Args: []string{own, set, how}}
	answers := make(chan answer, len(b.nodes)) // one slot for each: the reader may have gone
	f := newRequestGroup(b.done, readBound)
	for i, n := range b.nodes {
		f.do(func(ctx context.Context) {
			r := n.eval(ctx, setnx.Member, call)
			if r.Err != nil && redisconn.Answered(r.Err) == "" && ctx.Err() == nil {
				r = n.eval(ctx, setnx.Member, call) // the connection was closed while it was idle
			}
			answers <- answer{i, r}
		})
	}
	f.done()
	all := &names{own: make([]string, len(b.nodes)), set: make([]string, len(b.nodes)), errs: make([]error, len(b.nodes))}
	for range b.nodes {
		select {
		case a := <-answers: // all come: the requests have an end
			parts, _ := a.Value.([]any)
			if a.Err != nil || len(parts) != 2 {
				all.errs[a.node] = redisconn.Refusal(a.Err)
				continue
			}
			all.answered++
			all.own[a.node], _ = parts[0].(string)
			all.set[a.node], _ = parts[1].(string)
			if all.common(b.quorum) != "" {
				return all, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return all, nil
}

// noteAgain stores the name where it is missing. Each renewal calls it; it does nothing if Identity
// was never called. It runs in the background.
func (id *identity) noteAgain(bound time.Duration) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.known == "" || id.noting {
		return
	}
	id.noting = true
	call := redisconn.Call{Keys: []string{setnx.IdentityKey, setnx.IdentityKey + ":set"}, Args: []string{"", id.known, ""}}
	f := newRequestGroup(id.store.done, bound)
	for _, n := range id.store.nodes {
		f.do(func(ctx context.Context) { n.eval(ctx, setnx.Member, call) })
	}
	go func() {
		f.done()
		<-f.ctx.Done()
		id.mu.Lock()
		id.noting = false
		id.mu.Unlock()
	}()
}

var _ driver.Identifier = (*store)(nil)
