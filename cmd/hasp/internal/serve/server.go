// Package serve is the server of `hasp serve`: the contract of package driver over HTTP, for
// programs in other languages and for package httplock. docs/SERVE.md describes what it promises.
//
// A client's session is one driver.Session of the store. The server never renews it by itself: a
// keep-alive is passed on to the store while its client waits, and the duration that the store has
// granted is the answer. The client counts that from before its request was sent, which is before
// the server's request was: its trust ends before the store's, also if the server stops or dies.
//
// A request walks down these files once: http.go (net/http), routes.go (which operation), access.go
// (who asks) and limits.go; api.go, or operate.go for what people ask; session.go with turn.go;
// acquire.go, lock.go with numbers.go, and wait.go. A lock that changes servers passes moving.go.
// The page is a package.
package serve

import (
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/audit"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/page"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"golang.org/x/time/rate"
)

// Options say what is served to whom. Zero limits are those of Defaults.
type Options struct {
	Store  driver.Backend
	Tokens *access.Tokens // nil: everybody may do everything
	Log    *slog.Logger   // a line for each request
	Audit  *audit.Log     // nil: none
	Limits Limits

	// TTL is that of all sessions at a store that can forget; 0: 10 s. Such a store
	// grants nothing for so long after it was restarted, and must do so for the longest that any
	// client trusts.
	TTL time.Duration

	BehindTLS bool // browsers come by TLS, which a proxy ends
	Strangers int  // connections that have shown no token; 0: 1024
}

// Server serves one store. It is an http.Handler.
type Server struct {
	o        Options
	name     string // of this server, until it ends: it is told from the one before at its address
	mux      *http.ServeMux
	measured measured
	often    rate.Sometimes // errors in the log
	conns    conns
	page     *page.Page
	origin   *http.CrossOriginProtection

	background sync.WaitGroup
	over       context.Context // ends with the reaper
	stop       context.CancelFunc
	drain      context.Context // ended: no new sessions and locks, and waits end
	startDrain context.CancelFunc

	mu       sync.Mutex
	tokens   *access.Tokens  // nil: everybody may do everything
	renewed  context.Context // ends when there are other tokens: what goes on asks again whether it may
	renew    context.CancelFunc
	sessions map[string]*session
	usage    map[string]*usage // by the holder's name
	everyone *access.Holder
}

// New makes a server. It refuses a store of which the death of the server would free the locks at
// once, while their clients rely on them.
func New(o Options) (*Server, error) {
	if l := o.Store.Traits().Liveness; l != driver.Leased {
		return nil, fmt.Errorf("%w: the locks of %s are %s: they would be free as soon as the server dies, while its clients still rely on them. "+
			"Serve a store with leases: redis, etcd, zookeeper, or strategy=table of a database", driver.ErrUnsupported, o.Store, l)
	}
	o.TTL = cmp.Or(o.TTL, 10*time.Second)
	l, d := &o.Limits, Defaults
	l.Sessions, l.Locks, l.Waiting, l.TTL = cmp.Or(l.Sessions, d.Sessions), cmp.Or(l.Locks, d.Locks), cmp.Or(l.Waiting, d.Waiting), cmp.Or(l.TTL, d.TTL)
	s := &Server{
		o: o, name: rand.Text(), sessions: map[string]*session{}, usage: map[string]*usage{}, tokens: o.Tokens,
		everyone: access.Everyone(), origin: http.NewCrossOriginProtection(), often: rate.Sometimes{Interval: logEvery},
	}
	s.conns = conns{place: map[net.Conn]*list.Element{}, most: cmp.Or(o.Strangers, strangers), over: func() { s.measured.strangers.Add(1) }}
	s.over, s.stop = context.WithCancel(context.Background())
	s.drain, s.startDrain = context.WithCancel(s.over)
	s.renewed, s.renew = context.WithCancel(s.drain)
	var err error
	if s.page, err = page.New(page.Options{
		Store: o.Store, Evict: s.takeAway, Tokens: o.Tokens != nil, Secure: o.BehindTLS, Over: s.drain, Standing: s.standing, Admit: s.admitWatch,
		Find: func(h access.Hash) *access.Holder {
			if known := s.knownTokens(); known != nil {
				return known.FindHash(h)
			}
			return s.everyone
		},
	}); err != nil {
		return nil, err
	}
	s.mux = s.routes()
	s.background.Go(s.reap)
	return s, nil
}

// SetTokens changes who may do what. What goes on for long (a watch, an open page) ends, and is
// asked for again; a session of a token that is not known any more cannot be kept alive.
func (s *Server) SetTokens(t *access.Tokens) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = t
	s.renew()
	s.renewed, s.renew = context.WithCancel(s.drain)
}

// standing is ended by all that ends what goes on for long.
func (s *Server) standing() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed
}

// open begins a session at the store.
func (s *Server) open(ctx context.Context, owner *access.Holder, ttl time.Duration) (*session, time.Duration, error) {
	traits := s.o.Store.Traits()
	floor := max(traits.MinTTL, time.Millisecond)
	if ttl < floor || ttl > s.o.Limits.TTL {
		return nil, 0, httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("ttl_ms must be from %d to %d", floor.Milliseconds(), s.o.Limits.TTL.Milliseconds()))
	}
	atStore := ttl
	if traits.Forgets {
		atStore = max(s.o.TTL, floor)
		ttl = min(ttl, atStore)
	}
	if err := s.admitSession(owner); err != nil {
		return nil, 0, err
	}
	x := &session{
		server: s, id: s.name + "-" + rand.Text(), owner: owner, ttl: ttl, turn: newTurn(), eventsTurn: newTurn(), eventsBegun: make(chan struct{}),
		locks: map[uint64]*lock{}, entries: map[string]*lock{}, changed: make(chan struct{}),
	}
	x.beginEvents = sync.OnceFunc(func() { close(x.eventsBegun) })
	x.eventsPause = time.AfterFunc(time.Hour, x.eventsMissed)
	x.eventsPause.Stop()
	drv, granted, err := s.o.Store.Open(ctx, driver.SessionOptions{TTL: atStore, Gone: x.gone})
	if err == nil && granted == driver.Forever {
		err = errors.New("the store has granted a session for ever, which no server can pass on")
		_ = drv.Close(ctx) // the news is why
	}
	if err != nil {
		s.count(owner, func(u *usage) { u.sessions-- })
		return nil, 0, err
	}
	x.mu.Lock()
	x.drv = drv
	granted = x.keptAliveLocked(granted)
	x.mu.Unlock()
	s.mu.Lock()
	s.sessions[x.id] = x
	s.mu.Unlock()
	return x, granted, nil
}

// session finds a session of the token's holder. Another's is as good as none.
func (s *Server) session(owner *access.Holder, id string) (*session, error) {
	s.mu.Lock()
	x := s.sessions[id]
	s.mu.Unlock()
	if x == nil || !x.owner.Is(owner) {
		return nil, httpapi.NewProblem(httpapi.SessionGone, "no such session: it has ended, was not kept alive, or began at another server or before this one was started")
	}
	return x, nil
}

// close ends a session at the store, and forgets it. After an error the store's own expiry finishes
// the job: the server does not renew.
func (s *Server) close(ctx context.Context, x *session, why string) error {
	x.end(audit.Release, httpapi.NewProblem(httpapi.SessionGone, why))
	s.forget(x)
	return x.drv.Close(ctx)
}

// forget removes an ended session, and reports whether it was there.
func (s *Server) forget(x *session) bool {
	s.mu.Lock()
	known := s.sessions[x.id] == x
	delete(s.sessions, x.id)
	s.mu.Unlock()
	if !known {
		return false
	}
	x.mu.Lock()
	for _, l := range slices.Collect(maps.Values(x.locks)) {
		x.dropLocked(l)
	}
	x.mu.Unlock()
	s.count(x.owner, func(u *usage) { u.sessions-- })
	return true
}

// reap closes the sessions that no client can trust any more, and those that the store has ended.
func (s *Server) reap() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.over.Done():
			return
		}
		for _, x := range s.all() {
			if x.expire(time.Now()) && s.forget(x) {
				s.measured.expired.Add(1)
				s.background.Go(func() {
					ctx, cancel := context.WithTimeout(s.over, storeAnswer)
					defer cancel()
					_ = x.drv.Close(ctx) // else it expires at the store
				})
			}
		}
	}
}

func (s *Server) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(make([]*session, 0, len(s.sessions)), maps.Values(s.sessions))
}

// Close ends the server, after its last request. Sessions without locks are closed at the store.
// The others are left to their leases: their clients rely on them until these are over, and cannot
// go on here.
func (s *Server) Close() {
	s.stop()
	s.background.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), storeAnswer)
	defer cancel()
	for _, x := range s.all() {
		x.mu.Lock()
		n := len(x.locks)
		x.mu.Unlock()
		if n == 0 {
			_ = s.close(ctx, x, "the server has ended") // else it expires at the store
		}
	}
}
