package httplock

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// What a store cannot do must be absent here, because the core and the suite look for interfaces.
// The abilities come in these combinations; a store with another one shows the next smaller.
type (
	listing struct{ *backend } // Names, Evict; beside these two:
	watcher struct{ b *backend }
)

// withAbilities is the backend with what the store can do.
func (b *backend) withAbilities(s httpapi.Store) driver.Backend {
	can := func(what string) bool { return slices.Contains(s.Can, what) }
	l := listing{b}
	switch {
	case !can(httpapi.Names) || !can(httpapi.Evict):
		return b
	case can(httpapi.Watch):
		return struct {
			listing
			watcher
		}{l, watcher{b}}
	default:
		return l
	}
}

// Names implements driver.Namer: the names that the token may look at.
func (l listing) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	var a httpapi.NameList
	err := l.call(ctx, request{method: http.MethodGet, path: "/v1/names", query: url.Values{"prefix": {prefix}}}, &a)
	for _, name := range a.Names {
		if !yield(name) {
			break
		}
	}
	return err
}

// Evict implements driver.Evicter.
func (l listing) Evict(ctx context.Context, name, id, note string) error {
	return l.call(ctx, request{method: http.MethodPost, path: "/v1/evict", body: httpapi.EvictEntry{Name: name, Entry: l.nameOf(id), Note: note}}, nil)
}

// LastEviction implements driver.Evicter.
func (l listing) LastEviction(ctx context.Context, name string) (string, error) {
	var a httpapi.Text
	err := l.get(ctx, "/v1/eviction", name, &a)
	return a.Text, err
}

// silence is how long a watch may say nothing: the server says that it stands every five seconds.
const silence = 15 * time.Second

// Watch implements driver.Watcher.
func (w watcher) Watch(ctx context.Context, name string, changed func()) error {
	quiet, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.b.closed, func() { cancel(driver.ErrClosed) })()
	overdue := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer overdue.Stop()
	resp, err := w.b.send(quiet, request{method: http.MethodGet, path: "/v1/watch", query: url.Values{"name": {name}}})
	if err == nil {
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			overdue.Reset(silence)
			if lines.Text() == "changed" {
				changed()
			}
		}
		if err = lines.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
		err = w.b.failed(quiet, err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if cause := context.Cause(quiet); cause != nil {
		return cause
	}
	return err
}

var errSilent = errors.New("the server has said nothing for too long")

// Publish and Downgrade are kept apart from the ticket for the same reason.
type (
	publisher  struct{ t *ticket }
	downgrader struct{ t *ticket }
)

// withAbilities is the ticket with what the store's tickets can do.
func (t *ticket) withAbilities(can []string) driver.Ticket {
	has := func(what string) bool { return slices.Contains(can, what) }
	p, d := publisher{t}, downgrader{t}
	switch publishes, downgrades := has(httpapi.Publish), has(httpapi.Downgrade); {
	case publishes && downgrades:
		return struct {
			*ticket
			publisher
			downgrader
		}{t, p, d}
	case publishes:
		return struct {
			*ticket
			publisher
		}{t, p}
	case downgrades:
		return struct {
			*ticket
			downgrader
		}{t, d}
	default:
		return t
	}
}
