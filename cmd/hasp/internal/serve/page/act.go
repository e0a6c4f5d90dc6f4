package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/queues"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// act has what an operator wants to do.
type act struct {
	Name  string `json:"name"`
	Entry string `json:"entry"` // to evict
	Why   string `json:"why"`
}

// done says what has come of it.
type done struct {
	Text string `json:"text"`
}

// wanted reads a request to do something. Scripts of this page send the header; a page of another
// site cannot, without being asked by the browser first, and this server allows none.
func wanted(w http.ResponseWriter, q *http.Request, h *access.Holder, r access.Right) (a act, err error) {
	if q.Header.Get("Hasp-Page") == "" {
		return a, httpapi.NewProblem(httpapi.Forbidden, "this is for the page: programs use /v1")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, 16<<10))
	if err == nil {
		err = httpapi.Decode(body, &a)
	}
	switch {
	case err != nil:
		return a, httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("the request cannot be read: %v", err))
	case a.Why == "" || len(a.Why) > 1024:
		return a, httpapi.NewProblem(httpapi.Invalid, "a reason is needed, of 1024 bytes at most: others read it")
	}
	return a, may(h, r, a.Name)
}

// evict takes a lock away, or a place in a queue.
func (p *Page) evict(w http.ResponseWriter, q *http.Request, h *access.Holder) (any, error) {
	a, err := wanted(w, q, h, access.Operate)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(q.Context(), readBound)
	defer cancel()
	// The store keeps who did it and why, as hasp.Client.Evict has it for its own owner.
	why := hasp.Eviction{ID: a.Entry, By: owner(q, h), Why: a.Why, At: time.Now()}
	note, err := json.Marshal(why)
	if err == nil {
		err = p.o.Evict(ctx, h, a.Name, a.Entry, why, string(note))
	}
	switch {
	case errors.Is(err, driver.ErrGone):
		err = httpapi.NewProblem(httpapi.Gone, "it has just gone by itself")
	case err == nil:
		err = p.live.readQueues(p.o.Over, []string{a.Name}) // the page shows it at once
	}
	if err != nil {
		return nil, err
	}
	return done{"It was taken away. Its holder is told as soon as the store can tell it."}, nil
}

func owner(q *http.Request, h *access.Holder) hasp.Owner {
	return hasp.Owner{User: h.Name, Host: q.RemoteAddr, Program: "hasp serve"}
}

// askBound is how long a request stands in the queue.
const askBound = 60 * time.Second

// ask stands in the queue with a request to those who hold, until they have given the lock up, and
// takes nothing then.
func (p *Page) ask(w http.ResponseWriter, q *http.Request, h *access.Holder) (any, error) {
	a, err := wanted(w, q, h, access.Lock)
	if err != nil {
		return nil, err
	}
	release, err := p.o.Admit(h) // it stands in a queue
	if err != nil {
		return nil, err
	}
	defer release()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(askBound + 20*time.Second)) // where it cannot be set, none was
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(q.Context(), askBound)
	defer cancel()
	defer context.AfterFunc(p.o.Over, cancel)()
	text, err := p.asking(ctx, q, h, a)
	if err != nil {
		return nil, err
	}
	return done{text}, nil
}

func (p *Page) asking(ctx context.Context, q *http.Request, h *access.Holder, a act) (string, error) {
	now, err := p.client.Inspect(ctx, a.Name)
	if err != nil {
		return "", err
	}
	if len(now.Holders)+len(now.Waiters) == 0 {
		return "It is free.", nil
	}
	c, err := hasp.New(notClosed{p.o.Store}, hasp.WithOwner(owner(q, h)))
	if err != nil {
		return "", err
	}
	defer c.Close()
	lease, err := queues.Lock(ctx, c, now, hasp.AskHolder(a.Why), hasp.Note("asks from the page"))
	switch {
	case err != nil && ctx.Err() != nil:
		return "It is still held: its holder was asked, and has not given it up.", nil
	case err != nil:
		return "", err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), readBound)
	defer cancel()
	if err := lease.Release(bounded); err != nil {
		return "", err
	}
	return "It was given up. The next in the queue has it.", nil
}

// notClosed is a store that a client can close, as clients do, and that stays open.
type notClosed struct{ driver.Backend }

// Close closes nothing.
func (notClosed) Close() error { return nil }
