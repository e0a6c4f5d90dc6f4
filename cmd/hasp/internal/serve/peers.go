package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/internal/httpapi"
)

const (
	probeEvery  = time.Second
	probeAnswer = 2 * time.Second // of a server that is alive, on a busy machine too
	absentFor   = time.Second     // how long a server that was not found is not looked for again
)

var errPeerDown = errors.New("the server of the session does not answer")

// peers are the other servers of the store. A session is at the one that has opened it: its id begins with that one's life.
// They are found by asking all addresses who is there, when a life comes up that is not known.
type peers struct {
	urls []*url.URL
	tls  *tls.Config

	searching sync.Mutex // held by the one search that is under way

	mu       sync.Mutex
	searched time.Time // when the last search that is over began
	known    map[string]*peer
	absent   map[string]time.Time // lives that no server had, and when the search for them began
}

// find returns the server with a life, nil if there is none.
func (ps *peers) find(ctx context.Context, life string) *peer {
	if ps == nil {
		return nil
	}
	came := time.Now()
	if p, sure := ps.remembered(life, came); sure {
		return p
	}
	ps.searching.Lock()
	defer ps.searching.Unlock()
	// A search that began after this request came has seen the session's server, if there is one. One that began before may
	// have missed it.
	if p, sure := ps.remembered(life, came); sure {
		return p
	}
	began := time.Now()
	found := ps.search(context.WithoutCancel(ctx)) // others wait for it, too: this client may go away
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.searched = began
	for life, p := range found {
		if ps.known[life] != nil { // the same server, with requests under way
			p.client.CloseIdleConnections()
			continue
		}
		ps.known[life] = p
	}
	for life, p := range ps.known {
		if found[life] == nil && p.idle() { // it has ended, or not answered for once: then it is found again
			delete(ps.known, life)
			p.client.CloseIdleConnections()
		}
	}
	if ps.known[life] == nil {
		if len(ps.absent) >= 1000 {
			clear(ps.absent)
		}
		ps.absent[life] = began
	}
	return ps.known[life]
}

// remembered tells what is known of a life without a search for a request that came at a moment.
func (ps *peers) remembered(life string, came time.Time) (p *peer, sure bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.known[life]; p != nil {
		return p, true
	}
	at, missed := ps.absent[life]
	return nil, ps.searched.After(came) || missed && came.Sub(at) < absentFor
}

// search asks every address of every URL which server is there.
func (ps *peers) search(ctx context.Context) map[string]*peer {
	ctx, cancel := context.WithTimeout(ctx, probeAnswer)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	found := map[string]*peer{}
	for _, u := range ps.urls {
		all.Go(func() {
			for _, addr := range addresses(ctx, u) {
				all.Go(func() {
					p := ps.at(u, addr)
					life, err := p.ask(ctx)
					if err != nil || life == "" {
						p.client.CloseIdleConnections()
						return
					}
					p.life = life
					mu.Lock()
					defer mu.Unlock()
					found[life] = p
				})
			}
		})
	}
	all.Wait()
	return found
}

// addresses are all that a URL's name stands for.
func addresses(ctx context.Context, u *url.URL) (all []string) {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	ips := []netip.Addr{}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		ips = append(ips, ip)
	} else if ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname()); err != nil {
		return nil // no server there is found by now
	}
	for _, ip := range ips {
		all = append(all, net.JoinHostPort(ip.Unmap().String(), port))
	}
	return all
}

// peer is one of them.
type peer struct {
	of     *peers
	base   *url.URL
	life   string
	client *http.Client

	mu       sync.Mutex
	underway int
	alive    context.Context // nil without a prober; ends when the server does not answer
}

func (ps *peers) at(u *url.URL, addr string) *peer {
	var dialer net.Dialer
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, addr)
		},
		TLSClientConfig:     ps.tls.Clone(),
		TLSHandshakeTimeout: probeAnswer,
		IdleConnTimeout:     time.Minute,
		Protocols:           new(http.Protocols),
	}
	// Thousands of requests that wait share some connections.
	t.Protocols.SetUnencryptedHTTP2(u.Scheme == "http")
	t.Protocols.SetHTTP2(u.Scheme == "https")
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // servers do not redirect each other
	return &peer{of: ps, base: &url.URL{Scheme: u.Scheme, Host: u.Host}, client: &http.Client{Transport: t, CheckRedirect: refuse}}
}

// ask returns the life of the server at the address.
func (p *peer) ask(ctx context.Context) (string, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base.String()+"/healthz", nil)
	if err != nil {
		return "", err
	}
	r, err := p.client.Do(q)
	if err != nil {
		return "", err
	}
	return r.Header.Get(httpapi.ServerHeader), r.Body.Close()
}

func (p *peer) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.underway == 0
}

// use is the context of a request to the server. It ends with errPeerDown when the server is found not to answer, so that no client
// waits for one that is stopped, or unreachable, until its locks are lost: it goes on here.
func (p *peer) use(ctx context.Context) (context.Context, func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underway++
	if p.alive == nil {
		alive, end := context.WithCancelCause(context.Background())
		p.alive = alive
		go p.probe(end)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.alive, func() { cancel(errPeerDown) })
	return ctx, func() {
		stop()
		cancel(nil)
		p.mu.Lock()
		p.underway--
		p.mu.Unlock()
	}
}

// probe asks the server whether it is there for as long as it has requests of ours. Two answers must fail: one may be lost
// with its connection.
func (p *peer) probe(end context.CancelCauseFunc) {
	for failed := 0; failed < 2; {
		if failed == 0 {
			time.Sleep(probeEvery)
		}
		p.mu.Lock()
		if p.underway == 0 {
			p.alive = nil
			p.mu.Unlock()
			end(nil)
			return
		}
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), probeAnswer)
		life, err := p.ask(ctx)
		cancel()
		switch {
		case err != nil:
			failed++
			p.client.CloseIdleConnections() // the next one tries another connection
		case life != p.life:
			failed = 2 // another one is at its address
		default:
			failed = 0
		}
	}
	p.of.mu.Lock()
	delete(p.of.known, p.life) // the next request looks for it again
	p.of.mu.Unlock()
	p.mu.Lock()
	p.alive = nil
	p.mu.Unlock()
	end(errPeerDown)
}

// sessionLife is the life of the server that has opened a session.
func sessionLife(id string) string {
	life, _, ok := strings.Cut(id, "-")
	if !ok {
		return ""
	}
	return life
}
