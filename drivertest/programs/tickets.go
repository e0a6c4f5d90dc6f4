package programs

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Ticket returns a ticket that has the driver's optional methods, and no others.
func (s *connSession) Ticket(r driver.Request) driver.Ticket {
	t := &connTicket{s.Session.Ticket(r), s.c}
	s.c.mu.Lock()
	s.c.prefix = r.ID[:strings.LastIndex(r.ID, "-")+1]
	s.c.mu.Unlock()
	_, p := t.Ticket.(driver.Publisher)
	_, d := t.Ticket.(driver.Downgrader)
	type pub = publisher
	type down = downgrader
	switch {
	case p && d:
		return struct {
			*connTicket
			pub
			down
		}{t, pub{t}, down{t}}
	case p:
		return struct {
			*connTicket
			pub
		}{t, pub{t}}
	case d:
		return struct {
			*connTicket
			down
		}{t, down{t}}
	}
	return t
}

type connTicket struct {
	driver.Ticket
	c *conn
}

func (t *connTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	return through(ctx, t.c, true, t.Ticket.Enqueue)
}

func (t *connTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	v, err := t.wait(ctx)
	if lost := t.c.pass(ctx); lost != nil { // the store's reports arrive late in the meantime
		return driver.Verdict{}, lost
	}
	return v, err
}

// wait repeats a wait that was made short. The core asks anew by Enqueue after each wait that has
// ended, and so repairs what a driver forgets then. A driver must not forget it. Each lasts twice
// as long as the one before: the first ones end in the middle of a request, and one that has missed
// a change comes to last too long.
func (t *connTicket) wait(ctx context.Context) (driver.Verdict, error) {
	for n := 0; ; n++ {
		short := t.c.shortWaits() << min(n, 20)
		began := time.Now()
		v, err := bounded(ctx, short, t.Ticket.Wait)
		// An end that comes sooner is the driver's, and the core's to deal with.
		if short == 0 || time.Since(began) < short || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return v, err
		}
	}
}

func (t *connTicket) Leave(ctx context.Context) error {
	_, err := through(ctx, t.c, true, func(ctx context.Context) (struct{}, error) { return struct{}{}, t.Ticket.Leave(ctx) })
	return err
}

type publisher struct{ t *connTicket }

func (p publisher) Publish(ctx context.Context, value []byte) error {
	_, err := through(ctx, p.t.c, false, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.t.Ticket.(driver.Publisher).Publish(ctx, value)
	})
	return err
}

type downgrader struct{ t *connTicket }

func (d downgrader) Downgrade(ctx context.Context, units int64) error {
	_, err := through(ctx, d.t.c, false, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, d.t.Ticket.(driver.Downgrader).Downgrade(ctx, units)
	})
	return err
}
