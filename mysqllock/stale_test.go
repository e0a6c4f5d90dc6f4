package mysqllock

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// Connections end while they are idle, by a restart of the server, say: the next requests are made
// on others. (Each failed that took one of them.)
func TestStaleConnections(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	p := testkit.Proxy(t, m.Addr)
	reset := func(context.Context, *bound, uint64) error { p.Reset(); return nil }
	kill := func(ctx context.Context, b *bound, connection uint64) error {
		_, err := run(ctx, b.work, statement("KILL CONNECTION ?", connection))
		return err
	}
	for name, c := range map[string]struct {
		addr string
		end  func(context.Context, *bound, uint64) error
	}{
		"reset":  {p.Addr(), reset},
		"killed": {m.Addr, kill},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testkit.Context(t)
			b := openHere(t, c.addr, "prefix=stale_&connect_timeout=1m&strategy=getlock").(*bound)
			s := testkit.Session(t, b, time.Minute, nil)
			hold := func(when string) (tickets []*boundTicket) {
				t.Helper()
				for i := range 20 {
					k := s.Ticket(testkit.Request(fmt.Sprint("stale-", i))).(*boundTicket)
					if v, err := k.Enqueue(ctx); err != nil || !v.Held {
						t.Fatalf("%s, lock %d: %+v, %v", when, i, v, err)
					}
					tickets = append(tickets, k)
				}
				return tickets
			}
			idle := hold("at first")
			var numbers []uint64
			for _, k := range idle {
				numbers = append(numbers, k.waiting)
				if err := k.Leave(ctx); err != nil {
					t.Fatal(err)
				}
			}
			for i, k := range idle {
				if err := c.end(ctx, b, numbers[i]); err != nil {
					t.Fatal(err)
				}
				ended := k.monitor.Conn
				_ = ended.SetReadDeadline(time.Now().Add(testkit.Patience))
				if _, err := io.Copy(io.Discard, ended); err != nil && timedOut(err) {
					t.Fatalf("connection %d has not ended", numbers[i])
				}
				_ = ended.SetReadDeadline(time.Time{})
			}
			hold("after their end")
		})
	}
}
