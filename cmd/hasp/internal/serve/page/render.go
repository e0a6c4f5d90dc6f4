package page

import (
	"cmp"
	"context"
	"fmt"
	"html"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/queues"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
)

// firstRows is how many rows the server writes into the page, so that there is something to see
// before its script runs, and where none does.
const firstRows = 50

// index is the page, or where a person signs in. The text is put together by hand: a package for
// templates would make the program a third larger.
func (p *Page) index(w http.ResponseWriter, q *http.Request, h *access.Holder) (any, error) {
	if h == nil {
		words := ""
		if p.key(q) != "" {
			words = "You are signed out, or the server does not know your token any more. Sign in again."
		}
		return askToSignIn(w, words)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	var body strings.Builder
	for _, r := range p.first(q.Context(), h) {
		body.WriteString(r.html(time.Now()))
	}
	signedIn := "hidden"
	if p.o.Tokens {
		signedIn = ""
	}
	fill(w, document, map[string]string{"STORE": p.o.Store.String(), "WHO": h.Name, "SIGNED": signedIn, "!ROWS": body.String()})
	return Written, nil
}

// fill writes a document with @KEY@ replaced. Values are text; those whose key begins with ! are
// HTML.
func fill(w http.ResponseWriter, document string, values map[string]string) {
	var pairs []string
	for key, value := range values {
		if key[0] != '!' {
			value = html.EscapeString(value)
		}
		pairs = append(pairs, "@"+strings.TrimPrefix(key, "!")+"@", value)
	}
	_, _ = strings.NewReplacer(pairs...).WriteString(w, document) // to a browser that may have gone
}

// first are the rows that the page shows first: those with the longest queues, as far as they are
// known.
func (p *Page) first(ctx context.Context, h *access.Holder) []*row {
	rows, _, ready := p.live.all(&subscriber{})
	all := slices.Collect(maps.Values(rows))
	if !ready {
		all = p.readFirst(ctx, h)
	}
	all = slices.DeleteFunc(all, func(r *row) bool { return !h.May(access.Look, r.Name) })
	slices.SortFunc(all, func(a, b *row) int { return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Name, b.Name)) })
	return all[:min(len(all), firstRows)]
}

// readFirst reads some queues. A store that does not answer soon leaves the page empty at first,
// and its script says why.
func (p *Page) readFirst(ctx context.Context, h *access.Holder) (all []*row) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	names, err := queues.Names(ctx, p.client, "", readBound)
	if err != nil {
		return nil
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !h.May(access.Look, name) })
	found := make([]hasp.Queue, min(len(names), firstRows))
	_ = queues.Read(ctx, p.client, names[:len(found)], readBound, func(i int, q hasp.Queue) { found[i] = q })
	for _, q := range found {
		if len(q.Holders)+len(q.Waiters) > 0 {
			all = append(all, newRow(q, time.Now()))
		}
	}
	return all
}

// html is a row as the script makes it.
func (r *row) html(now time.Time) string {
	holder := r.Holder
	if r.More > 0 {
		holder += fmt.Sprintf(" and %d more", r.More)
	}
	waiting := ""
	if r.Waiting > 0 {
		waiting = fmt.Sprint(r.Waiting)
		if r.Beyond {
			waiting += "+"
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<div role="row" class="row"><span role="rowheader">%s</span>`, html.EscapeString(r.Name))
	for _, c := range []string{holder, r.Kind, r.Token, age(now, r.Since), left(now, r.Expires), waiting, age(now, r.Oldest)} {
		fmt.Fprintf(&b, `<span role="cell">%s</span>`, html.EscapeString(c))
	}
	b.WriteString("</div>\n")
	return b.String()
}

func age(now time.Time, since int64) string {
	if since == 0 {
		return ""
	}
	return max(now.Sub(time.UnixMilli(since)), 0).Truncate(time.Second).String()
}

func left(now time.Time, until int64) string {
	if until == 0 {
		return ""
	}
	return max(time.UnixMilli(until).Sub(now), 0).Truncate(time.Second).String()
}
