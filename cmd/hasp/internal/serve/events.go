package serve

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp/internal/httpapi"
)

// events waits for news of the session that are newer than after: locks that are lost, and locks
// that are held by now.
func (s *session) events(client context.Context, after uint64, wait time.Duration) (httpapi.Events, error) {
	u, err := s.eventsTurn.take(client, s.server.over)
	if err != nil {
		return httpapi.Events{}, err
	}
	defer u.release()
	s.eventsOpen()
	cut := false
	defer func() { s.eventsOver(cut) }()
	ctx, cancel := context.WithTimeout(u.ctx, wait)
	defer cancel()
	defer context.AfterFunc(s.server.drain, cancel)()
	for {
		e, changed, err := s.news(after)
		switch {
		case err != nil:
			return httpapi.Events{}, err
		case u.ctx.Err() != nil && !s.server.isDraining(): // its client has gone, or has asked again
			cut = !errors.Is(context.Cause(u.ctx), errOvertaken)
			return httpapi.Events{}, context.Cause(u.ctx)
		case len(e.Lost)+len(e.Changed) > 0 || ctx.Err() != nil:
			e.Draining = s.server.isDraining()
			return e, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// betweenEvents is the longest time between two requests for events: a client pauses for two seconds
// at most after an error.
const betweenEvents = 5 * time.Second

// eventsOpen notes that a request for events is open. It has their turn.
func (s *session) eventsOpen() {
	s.beginEvents()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listens, s.eventsCut = true, false
	s.eventsPause.Stop()
}

// eventsOver notes that no request for events is open any more: its client has cut it off, or is
// about to make the next. One that does not come in time counts as cut off. Its client may have been
// led to another server after an answer, with no request open that it could cut off.
func (s *session) eventsOver(cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listens = false; !cut {
		s.eventsPause.Reset(betweenEvents)
		return
	}
	s.cutEventsLocked()
}

// eventsMissed is eventsPause's function.
func (s *session) eventsMissed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.listens {
		s.cutEventsLocked()
	}
}

func (s *session) cutEventsLocked() {
	if s.server.o.Store.Traits().FIFO {
		return
	}
	s.eventsCut = true
	for _, l := range s.locks {
		if l.serverWait != nil {
			l.serverWait.end(errEventsCut) // one that is over already is not changed by that
		}
	}
}
