package simulation

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// stepDowngrade makes a writer a reader: it counts as one from before its request is sent.
func (w *world) stepDowngrade(args []string) {
	c := w.client(args)
	if c == nil || len(args) < 2 || args[1][0] != 'r' {
		return
	}
	h := w.holdOf(c, args[1])
	if h == nil {
		return
	}
	l, ok := h.lease.(*hasp.Lease)
	if !ok {
		return
	}
	w.record.Lock()
	h.units = 1
	w.record.Unlock()
	w.patiently(func(ctx context.Context) { _ = l.Downgrade(ctx) })
}

// stepPublish replaces the value of a leader.
func (w *world) stepPublish(args []string) {
	c := w.client(args)
	if c == nil || len(args) < 2 {
		return
	}
	if h := w.holdOf(c, args[1]); h != nil && h.term != nil {
		w.patiently(func(ctx context.Context) { _ = h.term.Publish(ctx, []byte("1")) })
	}
}

func (w *world) patiently(f func(ctx context.Context)) {
	go func() {
		ctx, cancel := context.WithTimeout(w.ctx, patience)
		defer cancel()
		f(ctx)
	}()
}

// adopted is an entry that a client has taken over from another, dead or alive: a separate session,
// which is renewed until the client ends.
type adopted struct {
	client  *client
	session driver.Session
	ticket  driver.Ticket
	token   uint64

	mu    sync.Mutex
	until time.Time // it is trusted until then, as the core does: less a margin
	gone  bool
}

func (a *adopted) Token() uint64 { return a.token }

func (a *adopted) Held() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.gone && time.Now().Before(a.until)
}

func (a *adopted) Release(ctx context.Context) error { return a.ticket.Leave(ctx) }

func (a *adopted) lost(string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
}

// trust notes that a request which was sent then has given the entry so much time.
func (a *adopted) trust(sent time.Time, granted time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = sent.Add(granted - granted/10)
}

// keep renews the entry for as long as its client lives and its world goes on.
func (a *adopted) keep(w *world) {
	for w.ctx.Err() == nil && !a.client.closed && !a.client.crashed {
		select {
		case <-w.ctx.Done():
		case <-time.After(a.client.ttl / 3):
			ctx, cancel := context.WithTimeout(w.ctx, a.client.ttl/3)
			sent := time.Now()
			if granted, err := a.session.KeepAlive(ctx); err == nil {
				a.trust(sent, granted)
			}
			cancel()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.client.ttl)
	defer cancel()
	_ = a.session.Close(ctx)
}

// stepAdopt has a client go on with what another holds. The other gives it up before that, and then
// releases what it held: if that was adopted, its release must find nothing.
func (w *world) stepAdopt(args []string) {
	if len(args) < 3 {
		return
	}
	to := w.client(args)
	var h *hold
	for _, c := range w.clients {
		if strconv.Itoa(c.n) == args[1] && h == nil {
			h = w.holdOf(c, args[2])
		}
	}
	if to == nil || h == nil {
		return
	}
	l, ok := h.lease.(*hasp.Lease)
	if !ok {
		return
	}
	w.record.Lock()
	h.over = true
	w.moment++
	r := driver.Request{Name: h.name, ID: fmt.Sprint("adopted-", w.moment), Units: h.units, Capacity: h.capacity, Owner: "{}", Since: time.Now()}
	w.record.Unlock()
	w.patiently(func(ctx context.Context) {
		a := &adopted{client: to}
		var err error
		if a.session, _, err = to.Backend().Open(ctx, driver.SessionOptions{TTL: to.ttl, Gone: a.lost}); err != nil {
			return
		}
		a.ticket = a.session.Ticket(r)
		sent := time.Now()
		v, err := a.ticket.(driver.Adopter).Adopt(ctx, l.ID(), h.token)
		if err == nil && v.Held {
			a.token = v.Token
			a.trust(sent, to.ttl)
			w.believes(&hold{acquisition: &acquisition{client: to, name: h.name, shared: h.shared, began: h.began}, lease: a, origin: h.origin, units: r.Units, capacity: r.Capacity})
		} else {
			_ = a.ticket.Leave(ctx)
		}
		go a.keep(w)
		_ = l.Release(ctx)
	})
}

// counts reports that the answer of a script is one that replicas must confirm: the entry is held,
// waits, was renewed or changed.
func counts(s *redisconn.Script, call redisconn.Call, answer any) bool {
	parts, several := answer.([]any)
	if strings.Contains(s.Text(), "\n-- renew: ") {
		gone := 0
		for i := 0; i+1 < len(parts); i += 2 {
			if parts[i+1] == int64(0) {
				gone++
			}
		}
		return gone < len(call.Args)-2-len(call.Keys)
	}
	n, _ := answer.(int64)
	return n > 0 || several && len(parts) > 0 && (parts[0] == int64(1) || parts[0] == "wait")
}
