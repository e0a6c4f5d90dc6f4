package faultnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// Proxy forwards TCP connections to one server. All methods may be called at once from
// any goroutine.
type Proxy struct {
	endpoint *endpoint

	wg sync.WaitGroup // the accepting loop and every connection

	// One lock for everything: a rule, a loss and an arrival have to be ordered among
	// each other on all connections at once, and a test's traffic is small. No I/O and
	// no wait is made while holding it.
	mu      sync.Mutex
	target  string
	closed  bool
	remote  bool        // the target may be on another machine
	unhook  func() bool // from New's context
	rebuff  bool
	rules   [2]Rule  // by Direction
	passed  [2]int64 // bytes since the rule is in force
	losses  []*loss  // armed, oldest first
	links   map[*link]struct{}
	stats   Stats
	changed chan struct{} // closed at the next change of stats; nil if no goroutine waits
}

// New starts a proxy to target, a host:port on this machine's loopback; anything else is refused,
// so that a mistyped test cannot disturb another host. The server need not be up.
//
// The proxy ends with ctx, or with Close. Note that testing.T.Context ends before the
// functions given to T.Cleanup run: clients that close there find their connections cut.
func New(ctx context.Context, target string) (*Proxy, error) {
	if err := checkLoopback(target); err != nil {
		return nil, err
	}
	return start(ctx, target, false)
}

// NewRemote is New for a target on any host: for hasp-torture, whose user names the store.
func NewRemote(ctx context.Context, target string) (*Proxy, error) {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, fmt.Errorf("faultnet: target %q is not host:port: %w", target, err)
	}
	return start(ctx, target, true)
}

func start(ctx context.Context, target string, remote bool) (*Proxy, error) {
	endpoint, err := newEndpoint()
	if err != nil {
		return nil, fmt.Errorf("faultnet: proxy to %s: %w", target, err)
	}
	p := &Proxy{target: target, remote: remote, endpoint: endpoint, links: map[*link]struct{}{}}
	p.startAccepting()
	// Under the lock, because a context that has already ended calls Close right now.
	p.mu.Lock()
	p.unhook = context.AfterFunc(ctx, p.Close)
	p.mu.Unlock()
	return p, nil
}

func checkLoopback(target string) error {
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return fmt.Errorf("faultnet: target %q is not host:port: %w", target, err)
	}
	if addr, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !addr.IsLoopback()) {
		return fmt.Errorf("faultnet: target %q is not a loopback address", target)
	}
	return nil
}

// Redirect sends connections that are made from now on to another server, as an address does that
// moves to the machine that takes over. Reset cuts those that exist.
func (p *Proxy) Redirect(target string) error {
	if err := checkLoopback(target); err != nil && !p.remote {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	return nil
}

// Addr is where clients connect: an address of loopback and a port that stays the proxy's own until
// Close, also while it refuses.
func (p *Proxy) Addr() string { return p.endpoint.addr }

// Close cuts every connection, stops listening and returns when no goroutine of the proxy
// is left. Further calls wait for the same.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.unhook()
	p.mu.Unlock()
	p.endpoint.close()
	// The accepting loop is over, so the list is complete.
	for _, l := range p.live() {
		l.end(byFIN)
	}
	p.wg.Wait()
	p.endpoint.release()
}

func (p *Proxy) live() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*link, 0, len(p.links))
	for l := range p.links {
		all = append(all, l)
	}
	return all
}

// admit takes in a connection that the accepting loop has got.
func (p *Proxy) admit(client *net.TCPConn) {
	p.mu.Lock()
	p.count(func(s *Stats) { s.Accepted++ })
	if p.rebuff {
		p.mu.Unlock()
		reset(client)
		return
	}
	l := newLink(p, client)
	p.links[l] = struct{}{}
	p.count(func(s *Stats) { s.Live++ })
	p.mu.Unlock()
	p.wg.Go(l.run) // called by the accepting loop, which is counted itself
}
