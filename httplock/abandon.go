package httplock

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// leftBehind is an entry of a ticket that a session may have left in the one before. It is not the
// ticket's own location: one that goes on may have another entry by the time that this one is
// removed.
type leftBehind struct {
	t        *ticket
	at       location
	orphaned bool // the ticket does not go on
}

// abandon removes entries that were left behind from the store, as well as it can: else they stay
// in the queue, and may be granted the lock, until their session's time is over. Then it tells the
// core of the orphaned, which queues again. After a request without an answer it makes no more:
// with many, each would wait for a dead host, and the next move for them.
func (s *session) abandon(ctx context.Context, all []leftBehind) {
	slots := make(chan struct{}, atOnce)
	var failed atomic.Bool
	var ended sync.WaitGroup
	for _, l := range all {
		slots <- struct{}{}
		ended.Go(func() {
			defer func() { <-slots }()
			t, at := l.t, l.at
			s.mu.Lock()
			report := l.orphaned && t.confirmed && !t.left
			s.mu.Unlock()
			names := []string{at.entry}
			if at.entry == "" { // the answer that named it was lost
				names = []string{"", t.r.ID} // the one of the server, or ours
			}
			for _, name := range names {
				if failed.Load() {
					break
				}
				in := httpapi.EvictEntry{Name: t.r.Name, Entry: name, FromSession: at.session, FromLock: at.number}
				if err := s.evict(ctx, in); err != nil && !errors.As(err, new(*httpapi.Problem)) && !errors.Is(err, driver.ErrGone) {
					failed.Store(true)
				}
			}
			if report {
				s.options.Gone(t.r.ID, errPlaceLost)
			}
		})
	}
	ended.Wait()
}

func (s *session) evict(ctx context.Context, in httpapi.EvictEntry) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.b.call(ctx, request{method: http.MethodPost, path: "/v1/evict", body: in}, nil)
}

// orphanLocked gives up an entry in a session that this one has left.
func (t *ticket) orphanLocked() {
	t.orphaned = true
	t.loseLocked(errPlaceLost)
}
