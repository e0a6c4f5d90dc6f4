package hasp_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
	"github.com/hasplock/hasp/memlock"
)

// A store that needs half of a TTL to renew all entries of a client, slice by slice, loses none.
// One that needs more loses some, and goes on with the others.
func TestSlowRenewals(t *testing.T) {
	const ttl = 10 * time.Second
	for _, c := range []struct {
		all   time.Duration // for one renewal of all entries
		keeps bool
	}{
		{ttl / 10, true}, {ttl / 2, true}, {ttl * 3 / 2, false},
	} {
		t.Run(fmt.Sprint(c.all), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const entries = 200
				b := &slowBackend{Backend: memlock.New().Backend(), each: c.all / entries}
				client, err := hasp.New(b, hasp.WithTTL(ttl))
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				var leases []*hasp.Lease
				for i := range entries {
					lease, err := client.Mutex(fmt.Sprint("n", i)).Lock(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					leases = append(leases, lease)
				}
				time.Sleep(10 * ttl)
				held := 0
				for _, l := range leases {
					if l.Held() {
						held++
					}
				}
				t.Logf("%d of %d are held", held, entries)
				if c.keeps && held < entries || !c.keeps && (held == entries || held < entries/4) {
					t.Errorf("%d of %d are held after ten TTLs", held, entries)
				}
			})
		})
	}
}

// slowBackend renews its entries one after the other.
type slowBackend struct {
	driver.Backend
	each time.Duration
}

func (b *slowBackend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return &slowSession{Session: s, each: b.each, ttl: o.TTL, renewed: map[string]bootclock.Instant{}}, granted, err
}

type slowSession struct {
	driver.Session
	each, ttl time.Duration

	mu      sync.Mutex
	renewed map[string]bootclock.Instant
}

func (s *slowSession) Ticket(r driver.Request) driver.Ticket {
	return &slowTicket{Ticket: s.Session.Ticket(r), session: s, id: r.ID}
}

func (s *slowSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	began := bootclock.Now()
	if _, err := s.Session.KeepAlive(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	var ids []string
	for id := range s.renewed {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return s.renewed[a].Compare(s.renewed[b]) })
	s.mu.Unlock()
	tally := keepalive.Tally{TTL: s.ttl, All: len(ids), Late: map[string]time.Duration{}}
	for _, id := range ids {
		sent := bootclock.Now()
		if ctx.Err() == nil {
			select {
			case <-time.After(s.each):
			case <-ctx.Done():
			}
		}
		s.mu.Lock()
		if at, there := s.renewed[id]; !there {
			tally.All--
		} else if ctx.Err() == nil {
			s.renewed[id] = sent
		} else {
			tally.Late[id] = keepalive.Left(s.ttl, at, began)
		}
		s.mu.Unlock()
	}
	return tally.Answer(ctx)
}

type slowTicket struct {
	driver.Ticket
	session *slowSession
	id      string
}

func (t *slowTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	t.session.mu.Lock()
	t.session.renewed[t.id] = bootclock.Now()
	t.session.mu.Unlock()
	return t.Ticket.Enqueue(ctx)
}

func (t *slowTicket) Leave(ctx context.Context) error {
	t.session.mu.Lock()
	delete(t.session.renewed, t.id)
	t.session.mu.Unlock()
	return t.Ticket.Leave(ctx)
}
