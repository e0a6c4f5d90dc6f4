package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// backend is a server.
type backend struct {
	base   string // http://host:port
	host   string
	token  string
	client *http.Client
	store  httpapi.Store // as it was when the URL was opened

	closed context.Context
	close  context.CancelCauseFunc

	mu  sync.Mutex
	ids map[string]string // our ids of entries that the server has named, by its names: see ticket.named
}

// String names the server, and the store behind it.
func (b *backend) String() string { return b.base + " (" + b.store.Label + ")" }

// Traits are the store's.
func (b *backend) Traits() driver.Traits { return b.store.Traits.Driver() }

// Close ends what is under way.
func (b *backend) Close() error {
	b.close(driver.ErrClosed)
	b.client.CloseIdleConnections()
	return nil
}

// Open begins a session at the server, and one at the store with it.
func (b *backend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	sent := time.Now()
	a, err := b.openSession(ctx, o.TTL)
	if err != nil {
		return nil, 0, err
	}
	granted := time.Duration(a.Valid) * time.Millisecond
	return newSession(b, o, a, sent.Add(granted)), granted, nil
}

// errOtherStore is in the errors about a server that has another store than the one whose URL was
// opened.
var errOtherStore = fmt.Errorf("%w", driver.ErrRefused)

// openSession begins a session at the server that the address leads to now.
func (b *backend) openSession(ctx context.Context, ttl time.Duration) (a httpapi.Session, err error) {
	ms := int64((ttl + time.Millisecond - 1) / time.Millisecond)
	if err = b.call(ctx, request{method: http.MethodPost, path: "/v1/session", body: httpapi.OpenSession{TTL: ms}}, &a); err != nil {
		return a, err
	}
	// The core has asked for the Traits, and relies on them: another server at this address may
	// have another store.
	if a.Store.Traits != b.store.Traits || !slices.Equal(a.Store.Can, b.store.Can) {
		err = fmt.Errorf("%w: %s serves another store by now (%s): open its URL again", errOtherStore, b.host, a.Store.Label)
	} else {
		_, err = valid(a.Valid)
	}
	if err != nil {
		_ = b.closeSession(ctx, a.Session) // else it expires
	}
	return a, err
}

func (b *backend) closeSession(ctx context.Context, id string) error {
	return b.call(ctx, request{method: http.MethodDelete, path: "/v1/session", session: id}, nil)
}

// valid checks the time that a server has granted.
func valid(ms int64) (time.Duration, error) {
	if ms <= 0 || ms > int64((24*time.Hour*30)/time.Millisecond) {
		return 0, fmt.Errorf("the server has granted %d ms, which cannot be", ms)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// List reads a queue, in as many answers as it needs.
func (b *backend) List(ctx context.Context, name string, limit int) (all []driver.Entry, err error) {
	q := url.Values{"name": {name}}
	for {
		if limit > 0 {
			q.Set("limit", strconv.Itoa(min(limit-len(all), httpapi.MostEntries)))
		}
		var a httpapi.Queue
		if err := b.call(ctx, request{method: http.MethodGet, path: "/v1/queue", query: q}, &a); err != nil {
			return nil, err
		}
		all = append(all, b.ours(a.Entries)...)
		if !a.More || len(a.Entries) == 0 || len(all) == limit {
			return all, nil
		}
		q.Set("after", strconv.FormatUint(a.Entries[len(a.Entries)-1].Seq, 10))
	}
}

// ours are entries with our ids, where the server has named them.
func (b *backend) ours(some []httpapi.Entry) (all []driver.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range some {
		x := e.Driver()
		if ours, ok := b.ids[x.ID]; ok {
			x.ID = ours
		}
		all = append(all, x)
	}
	return all
}

// nameOf is the server's name of an entry that the core knows by ours.
func (b *backend) nameOf(id string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for theirs, ours := range b.ids {
		if ours == id {
			return theirs
		}
	}
	return id
}

// get asks for what a name, or the store, has.
func (b *backend) get(ctx context.Context, path, name string, into any) error {
	r := request{method: http.MethodGet, path: path}
	if name != "" {
		r.query = url.Values{"name": {name}}
	}
	return b.call(ctx, r, into)
}

// Quarantine implements driver.Quarantiner. It asks only where the store can be in one.
func (b *backend) Quarantine(ctx context.Context, name string) (time.Duration, error) {
	if !slices.Contains(b.store.Can, httpapi.Quarantine) {
		return 0, nil
	}
	var a httpapi.Closed
	err := b.get(ctx, "/v1/quarantine", name, &a)
	return time.Duration(a.Quarantine) * time.Millisecond, err
}

// Diagnose implements driver.Diagnoser: the server's findings about its store.
func (b *backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	var a httpapi.Findings
	err := b.get(ctx, "/v1/doctor", "", &a)
	return a.Findings, err
}

// Warnings implements driver.Diagnoser.
func (b *backend) Warnings(ctx context.Context) ([]driver.Finding, error) {
	if !slices.Contains(b.store.Can, httpapi.Diagnose) {
		return nil, nil
	}
	var a httpapi.Findings
	err := b.get(ctx, "/v1/warnings", "", &a)
	return a.Findings, err
}

// sessionGone reports that the server does not know the session: it says nothing about the entry.
func sessionGone(err error) bool {
	p := new(httpapi.Problem)
	return errors.As(err, &p) && p.Of(httpapi.SessionGone)
}
