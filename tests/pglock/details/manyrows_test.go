package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// A client that takes thousands of names keeps them: the renewal counts with its first answer, and
// what it had no time to move is late by itself, counted from its grant, and moved by one of
// the next. None is lost, and at the end all of them live with the session.
func TestManyRowHolders(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, gone := opened(t, server.URL(), calm)
	const n = 4000
	began := time.Now()
	var all sync.WaitGroup
	for k := range 8 {
		all.Go(func() {
			for i := range n / 8 {
				enqueue(t, s.Ticket(mutex(fmt.Sprint("name-", k, "-", i))))
			}
		})
	}
	all.Wait()
	partial := new(driver.PartialRenewal)
	partly := 0
	// How much fits into a time depends on the machine, and on the moment: from too little for the
	// session's own row the time is doubled until that counts, and made shorter where all fits.
	within := 5 * time.Millisecond
	for left := n; left > 0; {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		_, err := s.KeepAlive(ctx)
		cancel()
		switch {
		case err == nil && partly == 0 && time.Since(began) < time.Minute:
			within = within * 3 / 4
		case err == nil:
			left = 0
		case errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &partial):
			within *= 2
		case !errors.As(err, &partial):
			t.Fatalf("a renewal of %d row holders: %v", left, err)
		case partial.Granted != calm || len(partial.Late) > left:
			t.Fatalf("%d late after %d, %t", len(partial.Late), left, partial.Slow)
		default:
			for id, l := range partial.Late {
				if l > calm || l < calm-time.Since(began) {
					t.Fatalf("%s has %s left of %s, %s after the first was entered", id, l, calm, time.Since(began))
				}
			}
			left = len(partial.Late)
			partly++
		}
	}
	if partly == 0 {
		t.Errorf("one renewal has moved %d row holders within %s", n, within)
	}
	if in := ask[int](t, server.URL(), "SELECT count(*)::int FROM hasp_entries"); in != n || len(gone) > 0 {
		t.Errorf("%d of %d live with the session, %d were told as gone", in, n, len(gone))
	}
}

// Another program's transaction has the row of one name, for as long as it likes. That one is late,
// and the others are renewed, in one attempt; when the transaction ends it is as the others.
func TestRowLockedByOthers(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, gone := opened(t, server.URL(), calm)
	stuck := mutex("stuck")
	enqueue(t, s.Ticket(stuck))
	for i := range 20 {
		enqueue(t, s.Ticket(mutex(fmt.Sprint("name-", i))))
	}
	other := executor(t, server.URL())
	other("BEGIN; SELECT FROM hasp_names WHERE name = 'stuck' FOR UPDATE")
	ctx, cancel := context.WithTimeout(t.Context(), calm/3)
	defer cancel()
	granted, err := s.KeepAlive(ctx)
	partial := new(driver.PartialRenewal)
	if !errors.As(err, &partial) || partial.Slow || partial.Granted != calm || len(partial.Late) != 1 || partial.Late[stuck.ID] > calm-time.Millisecond {
		t.Fatalf("beside a name that is locked: %s, %v, %+v", granted, err, partial)
	}
	other("COMMIT")
	renew(t, s)
	if in := ask[int](t, server.URL(), "SELECT count(*)::int FROM hasp_entries"); in != 21 || len(gone) > 0 {
		t.Errorf("%d of 21 live with the session, %d were told as gone", in, len(gone))
	}
}
