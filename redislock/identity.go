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
	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/setnx"
)

// identity is what a store is called, whichever way somebody has come to it. It is a random text
// in a key of the store, and not its address, since a server has many addresses, a Sentinel set
// and a cluster have several servers, and a client library need not tell where it is connected
// to. Where the locks have a prefix, the key has it too, so that whoever may use the one may
// use the other.
//
// The key has no expiry: two processes that know different texts for one store would take
// locks of several stores in different orders. A server that forgets its data forgets the key as
// well. So whoever has told a text puts it back, with his renewals: a process that asks in
// between makes another text, and from then on the smaller one is put back by both, so that
// everybody who asks later is told the same. The core keeps what it was told.
type identity struct {
	conn redisconn.Conn
	key  string
	text string // what is behind the server's part: strategy and prefix

	done  context.Context // ended by close; the parent of everything in the background
	close context.CancelFunc

	mu        sync.Mutex
	told      string // the server's part, if anybody has asked
	reminding bool
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
func (q *queue) Identity(ctx context.Context) (string, error) { return q.identity.tell(ctx) }

// Identity implements driver.Identifier. Whether there are counters makes no difference to who
// excludes whom.
func (a *attempts) Identity(ctx context.Context) (string, error) { return a.identity.tell(ctx) }

func (id *identity) tell(ctx context.Context) (string, error) {
	id.mu.Lock()
	told := id.told
	id.mu.Unlock()
	if told == "" {
		var err error
		if told, err = id.ask(ctx, strings.ToLower(rand.Text()), "take"); err != nil {
			return "", err
		}
		id.mu.Lock()
		if id.told == "" {
			id.told = told
		}
		told = id.told
		id.mu.Unlock()
	}
	return "redis/" + told + "/" + id.text, nil
}

// ownText is what we put into the key.
var ownText = regexp.MustCompile(`^[a-z0-9]{26}$`)

// ask returns what the store has. text is put there if it has nothing; how "insist" puts it
// there as well if it is smaller. A connection that broke while it was idle costs one attempt;
// the second finds what the first may have done.
func (id *identity) ask(ctx context.Context, text, how string) (string, error) {
	r := read(ctx, id.conn, setnx.Identity, redisconn.Call{Keys: []string{id.key}, Args: []string{text, how}})
	if r.Err != nil {
		return "", redisconn.Refusal(r.Err)
	}
	there, _ := r.Value.(string)
	if !ownText.MatchString(there) {
		return "", fmt.Errorf("%w: the key %q has something that hasp did not write; choose another prefix or remove it", driver.ErrMismatch, id.key)
	}
	return there, nil
}

// remind puts back what was told. It is called with each renewal, and does nothing in a client
// that has never been asked. Nobody waits for it: an answer would change nothing.
func (id *identity) remind(bound time.Duration) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.told == "" || id.reminding {
		return
	}
	id.reminding = true
	go func(text string) {
		ctx, cancel := context.WithTimeout(id.done, bound)
		defer cancel()
		_, _ = id.ask(ctx, text, "insist") // with the next renewal again
		id.mu.Lock()
		id.reminding = false
		id.mu.Unlock()
	}(id.told)
}

var (
	_ driver.Identifier = (*queue)(nil)
	_ driver.Identifier = (*attempts)(nil)
)
