package page

import (
	"fmt"
	"strconv"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// row describes a name in the list. Times are in milliseconds since 1970, as scripts count them.
type row struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`            // "exclusive", "readers", or the units that are held, as "3 of 5"
	Holder  string `json:"holder"`          // the first one; "" if there is none
	More    int    `json:"more,omitempty"`  // holders besides it
	Token   string `json:"token,omitempty"` // a number: JavaScript cannot count as far as some tokens go
	Since   int64  `json:"since,omitempty"`
	Expires int64  `json:"expires,omitempty"`
	Waiting int    `json:"waiting"`
	Beyond  bool   `json:"beyond,omitempty"` // more wait than were read
	Oldest  int64  `json:"oldest,omitempty"` // since when the first of those that wait does
	Closed  int64  `json:"closed,omitempty"` // until then the store grants nothing: it may have forgotten locks
}

func newRow(q hasp.Queue, now time.Time) *row {
	r := &row{Name: q.Name, Waiting: len(q.Waiters), Beyond: len(q.Holders)+len(q.Waiters) >= mostEntries, Oldest: oldest(q.Waiters)}
	if q.Quarantine > 0 {
		r.Closed = now.Add(q.Quarantine).UnixMilli()
	}
	r.Kind = kind(q)
	if len(q.Holders) == 0 {
		return r
	}
	h := q.Holders[0]
	r.Holder, r.More, r.Since = h.Owner.String(), len(q.Holders)-1, oldest(q.Holders)
	if h.Token != 0 {
		r.Token = strconv.FormatUint(h.Token, 10)
	}
	for _, h := range q.Holders {
		if at := milli(h.Expires); at != 0 && (r.Expires == 0 || at < r.Expires) {
			r.Expires = at
		}
	}
	return r
}

func kind(q hasp.Queue) string {
	all := append(q.Holders[:len(q.Holders):len(q.Holders)], q.Waiters...)
	switch {
	case len(all) == 0:
		return ""
	case all[0].Capacity == driver.Whole && len(q.Holders) > 0 && !q.Holders[0].Whole():
		return "readers"
	case all[0].Capacity == driver.Whole:
		return "exclusive"
	}
	held := int64(0)
	for _, h := range q.Holders {
		held += h.Units
	}
	return fmt.Sprintf("%d of %d", held, all[0].Capacity)
}

func oldest(entries []hasp.Entry) (at int64) {
	for _, e := range entries {
		if since := milli(e.Since); since != 0 && (at == 0 || since < at) {
			at = since
		}
	}
	return at
}

func milli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// same reports that a page need not be told of b after a. A TTL that is read a little later is the
// same one.
func (r *row) same(b *row) bool {
	if b == nil || abs(r.Expires-b.Expires) > 1000 || abs(r.Closed-b.Closed) > 1000 {
		return false
	}
	c := *b
	c.Expires, c.Closed = r.Expires, r.Closed
	return c == *r
}

func abs(n int64) int64 { return max(n, -n) }
