package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// boundTo opens a session of a strategy on which each lock has a connection.
func boundTo(t *testing.T, params string) *boundSession {
	t.Helper()
	return testkit.Session(t, openHere(t, "", params), 20*time.Second, nil).(*boundSession)
}

// busy reports whether a statement of that connection is under way.
func (s *boundSession) busy(ctx context.Context, t *testing.T, connection uint64) (is bool) {
	t.Helper()
	text := statement("SELECT COUNT(*) > 0 FROM information_schema.processlist WHERE id = ? AND command <> 'Sleep'", connection)
	if err := row(ctx, s.bound.work, text, &is); err != nil {
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
			ctx := testkit.Context(t)
			name := fmt.Sprint("ending-", i)
			testkit.Held(t, boundTo(t, params).Ticket(testkit.Request(name)))
			s := boundTo(t, params)
			for _, ends := range []bool{false, true} {
				w := s.Ticket(testkit.Request(name)).(*boundTicket)
				testkit.Entered(t, w)
				connection := w.waiting // which the first answer has told
				waiting, cancel := context.WithCancel(ctx)
				ended := make(chan error, 1)
				go func() { _, err := w.Wait(waiting); ended <- err }()
				testkit.Eventually(t, "it waits", func() bool { return s.busy(ctx, t, connection) })
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				if !ends {
					w.waiting = 0 // MariaDB looks once a second whether the client is there
				}
				if err := w.Leave(ctx); err != nil && !errors.Is(err, driver.ErrGone) {
					t.Fatal(err)
				}
				if ends {
					testkit.Eventually(t, "it has ended", func() bool { return !s.busy(ctx, t, connection) })
				}
			}
		})
	}
}

// The number of a waiter's connection is another client's by now: of another server, or another run
// of it. What that client asks goes on.
func TestWaitingOfAnother(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	s := boundTo(t, "strategy=getlock")
	hold, other := testkit.Must[*sql.Conn](t)(s.bound.kept.Conn(ctx)), testkit.Must[*sql.Conn](t)(s.bound.kept.Conn(ctx))
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
	testkit.Eventually(t, "it waits", func() bool { return s.busy(ctx, t, number) })
	w := s.Ticket(testkit.Request("mine")).(*boundTicket)
	w.waiting = number
	w.endWaiting(ctx)
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

// A connection that was given back belongs to the next request.
func TestWaitingIsForgotten(t *testing.T) {
	t.Parallel()
	s := boundTo(t, "strategy=getlock")
	r := testkit.Request("given-back")
	testkit.Held(t, boundTo(t, "strategy=getlock").Ticket(r))
	r.ID, r.NoWait = r.ID+"-try", true
	w := s.Ticket(r).(*boundTicket)
	testkit.Entered(t, w)
	if w.conn != nil || w.waiting != 0 {
		t.Errorf("connection %v, number %d, after a try that was refused", w.conn, w.waiting)
	}
}
