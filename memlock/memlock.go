// Package memlock is hasp's in-memory store: the reference for what a driver must do,
// the store of the examples, and a real lock between the goroutines and clients of one
// process. It follows testing/synctest's fake time.
//
//	c, err := hasp.New(memlock.New().Backend())
//	c, err := hasp.Open(ctx, "mem://orders") // all Opens of this URL share one store
//
// It promises everything in driver.Traits. Nothing survives the process. Its sessions
// expire like those of a server, if they are not renewed.
package memlock

import (
	"context"
	"fmt"
	"net/url"
	"sync"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/memstore"
)

func init() {
	driver.Register("mem", openURL)
}

// Store holds queues. Backends of one Store see each other's locks. Safe for use by many
// goroutines.
type Store struct{ mem *memstore.Store }

// New returns an empty store.
func New() *Store { return &Store{memstore.New("mem://")} }

// Backend returns a new connection to the store.
func (s *Store) Backend() driver.Backend { return s.mem.Backend() }

// named are the stores that mem:// URLs share, by host. They live as long as the process,
// like a server would.
var (
	namedMu sync.Mutex
	named   = map[string]*memstore.Store{}
)

// Open returns a backend of the store that mem://NAME names, which is one for the whole process. It
// is for programs that want the backend itself: hasp.Open makes a client, and takes the core's
// parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "mem")
}

func openURL(_ context.Context, u *url.URL) (driver.Backend, error) {
	if u.User != nil || u.Port() != "" || u.Path != "" && u.Path != "/" || u.Opaque != "" {
		return nil, fmt.Errorf("%w: a mem URL has a name and nothing else: mem://NAME", driver.ErrInvalid)
	}
	if err := driver.NewParams(u.Query()).Err(); err != nil {
		return nil, err
	}
	namedMu.Lock()
	defer namedMu.Unlock()
	s := named[u.Host]
	if s == nil {
		s = memstore.New("mem://" + u.Host)
		named[u.Host] = s
	}
	return s.Backend(), nil
}
