package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// boundTo is a store on which each lock has a connection.
func boundTo(t *testing.T, params string) *bound { return openHere(t, params).(*bound) }

// take takes a connection.
func (b *bound) take(t *testing.T) *boundConn {
	t.Helper()
	c, err := b.Take(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// busy reports whether a statement of that connection is under way.
func (b *bound) busy(ctx context.Context, t *testing.T, connection uint64) (is bool) {
	t.Helper()
	text := statement("SELECT COUNT(*) > 0 FROM information_schema.processlist WHERE id = ? AND command <> 'Sleep'", connection)
	if err := row(ctx, b.work, text, &is); err != nil {
		t.Fatal(err)
	}
	return is
}

// The statement of a waiter that has gone is ended at the server; the control is one that is not.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	for i, params := range []string{"strategy=getlock", "strategy=getlock&fence=off", "strategy=getlock&fence=off&names=plain"} {
		t.Run(params, func(t *testing.T) {
			t.Parallel()
			ctx := limited(t)
			r := request(fmt.Sprint("ending-", i))
			b := boundTo(t, params)
			s, _, err := b.Open(ctx, driver.SessionOptions{TTL: 20 * time.Second, Gone: func(string, error) {}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(ctx)
			if v, err := s.Ticket(r).Enqueue(ctx); err != nil || !v.Held {
				t.Fatalf("%+v, %v", v, err)
			}
			for _, ends := range []bool{false, true} {
				c := b.take(t)
				if g, err := b.Try(ctx, c, r); err != nil || g.Held {
					t.Fatalf("%+v, %v", g, err)
				}
				waiting, cancel := context.WithCancel(ctx)
				taken, ended := make(chan struct{}, 1), make(chan error, 1)
				go func() {
					_, err := b.Wait(waiting, c, r, func() { taken <- struct{}{} })
					ended <- err
				}()
				await(t, "the answer that it is taken", taken)
				connection := c.number
				eventually(t, "it waits", func() bool { return b.busy(ctx, t, connection) })
				cancel()
				err := <-ended
				if !errors.Is(err, context.Canceled) || !c.waits {
					t.Fatalf("%v, waits: %t", err, c.waits)
				}
				c.waits = ends // MariaDB looks once a second whether the client is there
				if err := b.Failed(waiting, c, r, true, err); !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				if ends && b.busy(ctx, t, connection) {
					eventually(t, "it has ended", func() bool { return !b.busy(ctx, t, connection) })
				}
			}
		})
	}
}

// The number of a waiter's connection is another client's by now: of another server, or another run
// of it. What that client asks goes on.
func TestWaitingOfAnother(t *testing.T) {
	t.Parallel()
	ctx := limited(t)
	b := boundTo(t, "strategy=getlock")
	hold, other := must[*sql.Conn](t)(b.kept.Conn(ctx)), must[*sql.Conn](t)(b.kept.Conn(ctx))
	defer hold.Close()
	defer other.Close()
	var number uint64
	if err := row(ctx, other, "SELECT CONNECTION_ID()", &number); err != nil {
		t.Fatal(err)
	}
	if err := row(ctx, hold, "SELECT GET_LOCK('another', 0)", new(int)); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		is := 0
		err := row(ctx, other, "SELECT COALESCE(GET_LOCK('another', 60), -1)", &is)
		if is != 1 {
			err = errors.Join(err, fmt.Errorf("it was interrupted: %d", is))
		}
		got <- err
	}()
	eventually(t, "it waits", func() bool { return b.busy(ctx, t, number) })
	b.endWaiting(&boundConn{number: number, waits: true}, request("mine"))
	if err := row(ctx, hold, "SELECT RELEASE_LOCK('another')", new(int)); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("%v", err)
	}
	if err := row(ctx, other, "SELECT RELEASE_LOCK('another')", new(int)); err != nil {
		t.Fatal(err)
	}
}
