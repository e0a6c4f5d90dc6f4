package serve

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/page"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// Options say what is served to whom. Zero limits are those of Defaults.
type Options struct {
	Store  driver.Backend
	Tokens *access.Tokens // nil: everybody may do everything
	Log    *slog.Logger   // a line for each request
	Limits Limits

	Peers    []*url.URL  // the other servers of the store, this one among them or not; a name stands for all its addresses
	PeersTLS *tls.Config // to reach them, nil for the system's authorities
}

// Limits bound what a token's holder can make the server keep.
type Limits struct {
	Sessions int // of a token
	Locks    int // of a session
	Waiting  int // of a token, in queues
	Rate     int // requests a second of a token; 0: any
}

// Defaults are the limits if nothing else is said.
var Defaults = Limits{Sessions: 10000, Locks: 20000, Waiting: 20000}

const (
	longestTTL  = 24 * time.Hour
	longestWait = 30 * time.Second // of one request
	storeAnswer = 10 * time.Second // how long the store may take for what its client does not wait for
)

// Server serves one store. It is an http.Handler.
type Server struct {
	o    Options
	life string // tells this server from the one before at the same address
	mux  *http.ServeMux
	meas measured
	page *page.Page

	peers  *peers // nil: no request is passed on
	origin *http.CrossOriginProtection

	background sync.WaitGroup
	over       context.Context // ends with the reaper
	stop       context.CancelFunc
	drain      context.Context // ended: no new sessions and locks, and waits end
	startDrain context.CancelFunc
	aside      chan func()  // to goroutines that have begun requests: see beginAside
	inPlace    atomic.Int32 // requests that wait in net/http's hands: see waitInPlace
	parking    parking

	mu       sync.Mutex
	sessions map[string]*session
	usage    map[*access.Holder]*usage
	anybody  *access.Holder
}

// usage counts what the holder of a token uses.
type usage struct {
	sessions, locks, waiting int
	bucket
}

// New makes a server. It refuses a store of which the death of the server would free the locks at once,
// while their clients rely on them.
func New(o Options) (*Server, error) {
	if l := o.Store.Traits().Liveness; l != driver.Leased {
		return nil, fmt.Errorf("%w: the locks of %s are %s: they would be free as soon as the server dies, while its clients still rely on them. "+
			"Serve a store with leases: redis, etcd, zookeeper, or strategy=table of a database", driver.ErrUnsupported, o.Store, l)
	}
	if o.Limits == (Limits{}) {
		o.Limits = Defaults
	}
	s := &Server{o: o, life: rand.Text(), sessions: map[string]*session{}, usage: map[*access.Holder]*usage{}, anybody: access.Anybody(), origin: http.NewCrossOriginProtection(), aside: make(chan func())}
	if len(o.Peers) > 0 {
		s.peers = &peers{urls: o.Peers, tls: o.PeersTLS, known: map[string]*peer{}, absent: map[string]time.Time{}}
	}
	s.over, s.stop = context.WithCancel(context.Background())
	s.drain, s.startDrain = context.WithCancel(context.Background())
	var err error
	if s.page, err = page.New(page.Options{Store: o.Store, Tokens: o.Tokens != nil, Over: s.drain, Admit: s.admitPage}); err != nil {
		return nil, err
	}
	s.mux = s.routes()
	s.background.Go(s.reap)
	return s, nil
}

// open begins a session at the store.
func (s *Server) open(ctx context.Context, owner *access.Holder, ttl time.Duration) (*session, time.Duration, error) {
	floor := max(s.o.Store.Traits().MinTTL, time.Millisecond)
	if ttl < floor || ttl > longestTTL {
		return nil, 0, httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("ttl_ms must be from %d to %d", floor.Milliseconds(), longestTTL.Milliseconds()))
	}
	if err := s.admitSession(owner); err != nil {
		return nil, 0, err
	}
	x := &session{
		server: s, id: s.life + "-" + rand.Text(), owner: owner,
		locks: map[uint64]*lock{}, entries: map[string]*lock{}, changed: make(chan struct{}),
	}
	drv, granted, err := s.o.Store.Open(ctx, driver.SessionOptions{TTL: ttl, Gone: x.gone})
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
	x.keptAliveLocked(granted)
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
	if x == nil || x.owner != owner {
		return nil, httpapi.NewProblem(httpapi.SessionGone, "no such session: it has ended, was not kept alive, or began at another server or before this one was started")
	}
	return x, nil
}

// close ends a session at the store, and forgets it. After an error the store's own expiry finishes
// the job: the server does not renew.
func (s *Server) close(ctx context.Context, x *session, why string) error {
	x.end(httpapi.NewProblem(httpapi.SessionGone, why))
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
				s.meas.expired.Add(1)
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

// count changes what a holder uses.
func (s *Server) count(h *access.Holder, change func(*usage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.usage[h]
	if u == nil {
		u = &usage{}
		s.usage[h] = u
	}
	change(u)
}

func (s *Server) admitSession(h *access.Holder) (err error) {
	if s.isDraining() {
		return draining()
	}
	s.count(h, func(u *usage) {
		if u.sessions >= s.o.Limits.Sessions {
			err = httpapi.NewProblem(httpapi.Limit, fmt.Sprintf("the token has %d sessions here, and may have no more", u.sessions))
			return
		}
		u.sessions++
	})
	return err
}

func (s *Server) admitLock(h *access.Holder, has int) (err error) {
	if has >= s.o.Limits.Locks {
		return httpapi.NewProblem(httpapi.Limit, fmt.Sprintf("the session has %d locks, and may have no more", has))
	}
	s.count(h, func(u *usage) {
		if u.waiting >= s.o.Limits.Waiting {
			err = httpapi.NewProblem(httpapi.Limit, fmt.Sprintf("%d locks of the token wait, and no more may", u.waiting))
			return
		}
		u.locks++
	})
	return err
}

// admitWatch counts a watch as one that waits; its end must be counted as well.
func (s *Server) admitWatch(h *access.Holder) (err error) {
	s.count(h, func(u *usage) {
		if u.waiting >= s.o.Limits.Waiting {
			err = httpapi.NewProblem(httpapi.Limit, fmt.Sprintf("%d locks and watches of the token wait, and no more may", u.waiting))
			return
		}
		u.waiting++
	})
	return err
}

// admitPage counts an open page as a watch.
func (s *Server) admitPage(h *access.Holder) (release func(), err error) {
	if err := s.admitWatch(h); err != nil {
		return nil, err
	}
	return func() { s.count(h, func(u *usage) { u.waiting-- }) }, nil
}

// Close ends the server, after its last request. Sessions without locks are closed at the store. The
// others are left to their leases: their clients rely on them until these are over, and cannot go on
// here.
func (s *Server) Close() {
	s.beginDrain()
	s.stop()
	s.parking.close()
	s.background.Wait()
	s.parking.forget()
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

// HTTP is an http.Server for s: HTTP/1.1, and HTTP/2 with TLS or without. Slow senders are cut off;
// each handler says how long its answer may take.
func HTTP(s *Server) *http.Server {
	const slow = 10 * time.Second
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetHTTP2(true)
	both.SetUnencryptedHTTP2(true)
	h := &http.Server{
		Handler: s, Protocols: &both, ReadHeaderTimeout: slow, ReadTimeout: slow, WriteTimeout: slow + writeSlack, IdleTimeout: idle,
		MaxHeaderBytes: 16 << 10, ErrorLog: log.New(io.Discard, "", 0), // of what clients do wrong
	}
	s.parking.open(h)
	return h
}
