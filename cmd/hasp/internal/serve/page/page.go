// Package page is the web page of hasp serve: who holds what, live, with what an operator does
// about it. It is served by the same program, and asks no other host for anything.
//
// The server reads the store for all pages together, while at least one is open (see live), and
// sends each page what has changed, as server-sent events. What a page shows and does is bounded by
// the rights of the token with which a person has signed in.
package page

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/records"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// Options say what is shown to whom.
type Options struct {
	Store  driver.Backend
	Tokens bool // a person has to sign in with one
	Secure bool // browsers come by TLS, also where a proxy in front of the server has ended that

	Over     context.Context        // ends with the server: pages then go to another one
	Standing func() context.Context // ends with it, too, and when it is to be asked again who may do what
	Find     func(access.Hash) *access.Holder
	Evict    func(ctx context.Context, by *access.Holder, name, entry string, why hasp.Eviction, note string) error

	// Admit counts an open page of a holder, or a request in a queue, until release is called; or
	// it refuses one more.
	Admit func(h *access.Holder) (release func(), err error)
}

// Page serves the page.
type Page struct {
	o      Options
	client *hasp.Client // reads: it takes no lock, and is not closed, because the store is the server's
	live   *live
	health health

	mu       sync.Mutex
	losses   []Loss               // the latest last
	sessions map[string]*signedIn // by the cookie's value
}

// Loss is a lock that the store has taken from a client of this server.
type Loss struct {
	Name  string    `json:"name"`
	Token string    `json:"by,omitempty"` // the name of its client's token
	Why   string    `json:"why"`
	At    time.Time `json:"at"`
}

// lossesKept bounds what is kept of the past. More of it is in the log, and in the metrics.
const lossesKept = 200

// New makes the page of a store.
func New(o Options) (*Page, error) {
	client, err := hasp.New(short{o.Store})
	if err != nil {
		return nil, err
	}
	return &Page{o: o, client: client, live: newLive(client, o.Over), sessions: map[string]*signedIn{}}, nil
}

// Lost notes a loss.
func (p *Page) Lost(l Loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses = append(p.losses[max(0, len(p.losses)-lossesKept+1):], l)
}

// mostEntries is how much of a queue the page reads.
const mostEntries = 300

// short is a store of whose queues only the beginning is read. What the store cannot do is refused
// by each method.
type short struct{ driver.Backend }

// List implements driver.Backend.
func (s short) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if limit == 0 || limit > mostEntries {
		limit = mostEntries
	}
	return s.Backend.List(ctx, name, limit)
}

// Names implements driver.Namer.
func (s short) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	if n, ok := s.Backend.(driver.Namer); ok {
		return n.Names(ctx, prefix, yield)
	}
	return driver.ErrUnsupported
}

// Quarantine implements driver.Quarantiner.
func (s short) Quarantine(ctx context.Context, name string) (time.Duration, error) {
	if q, ok := s.Backend.(driver.Quarantiner); ok {
		return q.Quarantine(ctx, name)
	}
	return 0, nil
}

// Evict and LastEviction implement driver.Evicter. The page evicts by the store itself.
func (s short) Evict(context.Context, string, string, string) error { return driver.ErrUnsupported }
func (s short) LastEviction(ctx context.Context, name string) (string, error) {
	if r, ok := s.Backend.(driver.Evicter); ok {
		return r.LastEviction(ctx, name)
	}
	return "", driver.ErrUnsupported
}

// Route is an operation of the page. The holder is nil before a person has signed in.
type Route struct {
	Pattern string // of http.ServeMux
	Open    bool   // to those who have not signed in
	Do      func(w http.ResponseWriter, q *http.Request, h *access.Holder) (answer any, err error)
}

// Written is the answer of an operation that has written it itself.
var Written = any("written")

// Routes has all operations.
func (p *Page) Routes() []Route {
	return []Route{
		{"GET /{$}", true, p.index},
		{"GET /page.js", true, file("text/javascript; charset=utf-8", script)},
		{"GET /page.css", true, file("text/css; charset=utf-8", style)},
		{"POST /page/login", true, p.login},
		{"POST /page/logout", true, p.logout},
		{"GET /page/events", false, p.events},
		{"GET /page/queue", false, p.queue},
		{"POST /page/evict", false, p.evict},
		{"POST /page/ask", false, p.ask},
	}
}

var (
	//go:embed page.js
	script string
	//go:embed page.css
	style string
	//go:embed page.html
	document string
	//go:embed login.html
	loginDocument string
)

func file(kind, text string) func(http.ResponseWriter, *http.Request, *access.Holder) (any, error) {
	return func(w http.ResponseWriter, _ *http.Request, _ *access.Holder) (any, error) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write([]byte(text)) // to a browser that may have gone
		return Written, nil
	}
}

// Protect sets the headers by which a browser keeps other pages out, and this one from asking other
// hosts.
func Protect(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // with none, a browser sends the form with the origin "null"
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
}

// detail is a queue in full.
type detail struct {
	Now time.Time `json:"now"`
	records.Queue
	Eviction *hasp.Eviction `json:"eviction,omitempty"` // the last one
	Losses   []Loss         `json:"losses"`             // the latest first
	MayAsk   bool           `json:"may_ask"`
	MayEvict bool           `json:"may_evict"`
}

// queue shows a name.
func (p *Page) queue(_ http.ResponseWriter, q *http.Request, h *access.Holder) (any, error) {
	name := q.URL.Query().Get("name")
	if err := may(h, access.Look, name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(q.Context(), readBound)
	defer cancel()
	found, err := p.client.Inspect(ctx, name)
	if err != nil {
		return nil, err
	}
	d := detail{Now: time.Now(), Queue: records.Of(found), MayAsk: h.May(access.Lock, name), MayEvict: h.May(access.Operate, name)}
	if e, err := p.client.LastEviction(ctx, name); err == nil { // else the store keeps none
		d.Eviction = e
	}
	d.Losses = p.lossesOf(name)
	return d, nil
}

// lossesOf are those of a name.
func (p *Page) lossesOf(name string) []Loss {
	p.mu.Lock()
	defer p.mu.Unlock()
	some := []Loss{}
	for _, l := range slices.Backward(p.losses) {
		if l.Name == name {
			some = append(some, l)
		}
	}
	return some
}

// may checks a name and the right to it.
func may(h *access.Holder, r access.Right, name string) error {
	if err := driver.CheckName(name); err != nil {
		return httpapi.NewProblem(httpapi.Invalid, err.Error())
	}
	if !h.May(r, name) {
		return httpapi.NewProblem(httpapi.Forbidden, fmt.Sprintf("token %q has not the right to %s %q", h.Name, r, name))
	}
	return nil
}
