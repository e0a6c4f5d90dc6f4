package serve_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/httplock"
	"github.com/hasplock/hasp/memlock"
)

// A keep-alive that reached all but two entries, of which the store has not answered for one yet,
// says so to the client through the server.
func TestUnansweredThroughTheServer(t *testing.T) {
	store := &lateStore{Backend: memlock.New().Backend()}
	_, server := with(t, serve.Options{Store: store})
	front := httptest.NewServer(server)
	t.Cleanup(front.Close)
	b, err := httplock.New(t.Context(), front.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Minute, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	for _, name := range []string{"late", "unanswered"} {
		ticket := s.Ticket(driver.Request{Name: name, ID: name, Units: driver.Whole, Capacity: driver.Whole})
		if v, err := ticket.Enqueue(t.Context()); err != nil || !v.Held {
			t.Fatalf("%s: %+v, %v", name, v, err)
		}
	}
	_, err = s.KeepAlive(t.Context())
	var partial *driver.PartialRenewal
	if !errors.As(err, &partial) {
		t.Fatal(err)
	}
	if len(partial.Late) != 2 || partial.Late["late"] == 0 {
		t.Errorf("late: %v", partial.Late)
	}
	if len(partial.Unanswered) != 1 || !partial.Unanswered["unanswered"] {
		t.Errorf("unanswered: %v", partial.Unanswered)
	}
}

// lateStore renews no entry, and has not answered for those whose name says so.
type lateStore struct {
	driver.Backend
	mu    sync.Mutex
	names map[string]string // by ID
}

type lateSession struct {
	driver.Session
	store *lateStore
}

func (b *lateStore) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	b.names = map[string]string{}
	return lateSession{s, b}, granted, err
}

func (s lateSession) Ticket(r driver.Request) driver.Ticket {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.names[r.ID] = r.Name
	return s.Session.Ticket(r)
}

func (s lateSession) KeepAlive(context.Context) (time.Duration, error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	partial := &driver.PartialRenewal{Granted: time.Minute, Late: map[string]time.Duration{}, Unanswered: map[string]bool{}, Err: errors.New("not all")}
	for id, name := range s.store.names {
		partial.Late[id] = 5 * time.Second
		partial.Unanswered[id] = name == "unanswered"
	}
	return 0, partial
}
