package serve_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/memlock"
)

// limits notes the greatest limit with which a queue was read; 0 counts as all.
type limits struct {
	driver.Backend
	most atomic.Int64
}

func (l *limits) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if limit == 0 {
		limit = 1 << 30
	}
	l.most.Store(max(l.most.Load(), int64(limit)))
	return l.Backend.List(ctx, name, limit)
}

func (l *limits) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	return l.Backend.(driver.Namer).Names(ctx, prefix, yield)
}

// A long queue is read in parts, of which the first costs the store no more than it shows; a client
// that wants all has all, once each and in order. The page never reads more than a beginning.
func TestLongQueue(t *testing.T) {
	store := &limits{Backend: memlock.New().Backend()}
	c, addr := start(t, serve.Options{Store: store, Limits: serve.Limits{TTL: time.Hour}})
	client := &api{t: t, s: c}
	client.open(time.Hour)
	const n = 1203
	for i := 1; i <= n; i++ {
		client.lock(fmt.Sprint(i), "a")
	}
	var q httpapi.Queue
	client.want(200, "GET", "/v1/queue?name=a&limit=100000", nil, &q)
	if len(q.Entries) != httpapi.MostEntries || !q.More || store.most.Load() > httpapi.MostEntries+1 {
		t.Errorf("%d entries, more %t, and %d were read", len(q.Entries), q.More, store.most.Load())
	}
	b := open(t, addr, "")
	for _, limit := range []int{0, 1, 500, 501, 1203, 5000} {
		all, err := b.List(t.Context(), "a", limit)
		want := min(limit, n)
		if limit == 0 {
			want = n
		}
		if err != nil || len(all) != want {
			t.Fatalf("limit %d: %d entries, %v", limit, len(all), err)
		}
		for i, e := range all[1:] {
			if e.Seq <= all[i].Seq {
				t.Fatalf("limit %d: entry %d is %d after %d", limit, i+1, e.Seq, all[i].Seq)
			}
		}
	}
	store.most.Store(0)
	page := &tab{t: t, addr: addr}
	rows(t, page.events(), "a")
	page.status(200, "GET", "/page/queue?name=a", "")
	if most := store.most.Load(); most > 300 {
		t.Errorf("the page has read %d entries", most)
	}
}
