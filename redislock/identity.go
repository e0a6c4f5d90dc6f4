package redislock

import (
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// identity identifies a store, however it is reached. It is a random text in a key of the store,
// and not an address: a server has many addresses, a Sentinel set and a cluster have several
// servers, and a client library need not tell where it is connected. If the locks have a
// prefix, the key has it too, so that one permission covers both.
//
// The key has no expiry: two processes that know different texts for one store would take
// locks of several stores in different orders. A server that loses its data loses the key as
// well. So a client that has returned a text restores it with its renewals. A process that asks
// in between makes another text; from then on both restore, the smaller text prevails, and every
// later client gets the same one. The core keeps the text that it got first.
type identity struct {
	conn redisconn.Conn
	key  string
	text string // the part behind the server's text: strategy and prefix

	done  context.Context // ended by close; the parent of all work in the background
	close context.CancelFunc

	mu        sync.Mutex
	known     string // the server's part, once Identity was called
	restoring bool
}

func newIdentity(conn redisconn.Conn, o Options) *identity {
	id := &identity{conn: conn, key: setnx.IdentityKey, text: string(o.Strategy)}
	if o.Strategy == StrategyQueue {
		id.key = o.Prefix + "identity"
	} else {
		id.text += "/" + o.Prefix // the key is one for all prefixes
	}
	id.done, id.close = context.WithCancel(context.Background())
	return id
}

// Identity implements driver.Identifier.
func (q *queue) Identity(ctx context.Context) (string, error) { return q.identity.get(ctx) }

// Identity implements driver.Identifier. Counters do not matter: clients with and without them
// exclude each other.
func (a *oneKey) Identity(ctx context.Context) (string, error) { return a.identity.get(ctx) }

func (id *identity) get(ctx context.Context) (string, error) {
	id.mu.Lock()
	text := id.known
	id.mu.Unlock()
	if text == "" {
		var err error
		if text, err = id.request(ctx, strings.ToLower(rand.Text()), "take"); err != nil {
			return "", err
		}
		id.mu.Lock()
		if id.known == "" {
			id.known = text
		}
		text = id.known
		id.mu.Unlock()
	}
	return "redis/" + text + "/" + id.text, nil
}

// identityText is the form of the texts that hasp writes into the key.
var identityText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]{26}$`) })

// request returns the text that the store has. A store without one takes text; with how
// "insist" it also takes text if that is smaller. A connection that broke while it was idle costs
// one attempt; the second attempt finds what the first may have written.
func (id *identity) request(ctx context.Context, text, how string) (string, error) {
	r := read(ctx, id.conn, setnx.Identity, redisconn.Call{Keys: []string{id.key}, Args: []string{text, how}})
	if r.Err != nil {
		return "", redisconn.Refusal(r.Err)
	}
	there, _ := r.Value.(string)
	if !identityText().MatchString(there) {
		return "", fmt.Errorf("%w: the key %q has something that hasp did not write; choose another prefix or remove it", driver.ErrMismatch, id.key)
	}
	return there, nil
}

// restore writes the text that this client has returned. Each renewal calls it; it does nothing
// if Identity was never called. It runs in the background: its answer would change nothing.
func (id *identity) restore(bound time.Duration) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.known == "" || id.restoring {
		return
	}
	id.restoring = true
	go func(text string) {
		ctx, cancel := context.WithTimeout(id.done, bound)
		defer cancel()
		_, _ = id.request(ctx, text, "insist") // with the next renewal again
		id.mu.Lock()
		id.restoring = false
		id.mu.Unlock()
	}(id.known)
}

var (
	_ driver.Identifier = (*queue)(nil)
	_ driver.Identifier = (*oneKey)(nil)
)
