package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
)

const (
	beat    = 5 * time.Second        // of a stream: without a word for longer, something in between has ended it
	between = 100 * time.Millisecond // two events: what changes meanwhile is one
)

// change is an event: what has changed in the list. The first one has all rows.
type change struct {
	Now   int64    `json:"now"`
	Set   []*row   `json:"set"`
	Gone  []string `json:"gone,omitempty"`
	Ready bool     `json:"ready"` // the store was read
}

// stream writes server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
type stream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (s *stream) send(event string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return s.write(fmt.Sprintf("event: %s\ndata: %s\n\n", event, b))
}

func (s *stream) write(text string) error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(2 * beat)) // where it cannot be set, none was
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.rc.Flush()
}

// events tells a page what changes, until the page is closed or the server is about to end.
func (p *Page) events(w http.ResponseWriter, q *http.Request, h *access.Holder) (any, error) {
	release, err := p.o.Admit(h)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	defer context.AfterFunc(p.o.Standing(), cancel)()
	s := &stream{w, http.NewResponseController(w)}
	_ = s.rc.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back
	sub := p.live.subscribe()
	defer p.live.unsubscribe(sub)
	rows, trouble, ready := p.live.all(sub)
	if s.send("list", visible(rows, h, ready)) == nil && s.send("trouble", trouble) == nil {
		p.follow(ctx, s, sub, h)
	}
	return Written, nil
}

func (p *Page) follow(ctx context.Context, s *stream, sub *subscriber, h *access.Holder) {
	health := make(chan report)
	go p.reports(ctx, h, health) // ends with ctx
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			err = s.send("here", struct{}{}) // an event: a comment is not told to the page
		case r := <-health:
			err = s.send("health", r)
		case <-sub.wake:
			err = p.pass(s, sub, h)
			select {
			case <-time.After(between):
			case <-ctx.Done():
			}
		}
		if err != nil {
			return // the page is gone
		}
	}
}

// pass sends what has changed.
func (p *Page) pass(s *stream, sub *subscriber, h *access.Holder) error {
	rows, trouble, ready := p.live.take(sub)
	c := visible(rows, h, ready)
	if len(c.Set)+len(c.Gone) > 0 || trouble != nil {
		if err := s.send("change", c); err != nil {
			return err
		}
	}
	if trouble != nil {
		return s.send("trouble", *trouble)
	}
	return nil
}

// visible has the rows at which a holder may look; one of nil is gone.
func visible(rows map[string]*row, h *access.Holder, ready bool) change {
	c := change{Now: time.Now().UnixMilli(), Set: []*row{}, Ready: ready}
	for name, r := range rows {
		switch {
		case !h.May(access.Look, name):
		case r == nil:
			c.Gone = append(c.Gone, name)
		default:
			c.Set = append(c.Set, r)
		}
	}
	return c
}
