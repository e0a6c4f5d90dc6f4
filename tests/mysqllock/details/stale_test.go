package mysqllock_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// Connections end while they are idle, by a restart of the server, say: the next requests are made
// on others. (Each failed that took one of them.)
func TestStaleConnections(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*testing.T, *sql.DB, *faultnet.Proxy, []int64){
		"reset":  resetAll,
		"killed": killAll,
	} {
		t.Run(how, func(t *testing.T) {
			prefix := "stale" + how + "_"
			storeURL, db := prefixed(t, prefix, "connect_timeout=1m", "strategy=getlock")
			p, behind := testkit.Behind(t, storeURL)
			if how == "killed" {
				behind = storeURL // the server ends the very connections of the client
			}
			b := testkit.Open(t, behind)
			t.Cleanup(func() { b.Close() })
			s := testkit.Session(t, b, time.Hour, nil)
			var held []driver.Ticket
			var conns []int64
			for i := range 20 {
				name := fmt.Sprint("stale-", i)
				held = append(held, enqueue(t, s, name, true))
				testkit.Until(t, "the record of "+name, func() error {
					var connection int64
					err := db.QueryRow("SELECT connection FROM "+prefix+"bound WHERE name = ? AND connection > 0", name).Scan(&connection)
					if err == nil {
						conns = append(conns, connection)
					}
					return err
				})
			}
			for _, k := range held {
				if err := k.Leave(ctx(t)); err != nil {
					t.Fatal(err)
				}
			}
			end(t, db, p, conns)
			for i := range held {
				enqueue(t, s, fmt.Sprint("stale-", i), true)
			}
		})
	}
}

func resetAll(t *testing.T, _ *sql.DB, p *faultnet.Proxy, _ []int64) {
	p.Reset()
	if err := p.WaitFor(ctx(t), func(s faultnet.Stats) bool { return s.Live == 0 }); err != nil {
		t.Fatal(err)
	}
}

// killAll returns when the server lists none of them: it closes the socket before that.
func killAll(t *testing.T, db *sql.DB, _ *faultnet.Proxy, conns []int64) {
	for _, connection := range conns {
		sqlkit.Exec(t, db, fmt.Sprint("KILL CONNECTION ", connection))
	}
	for _, connection := range conns {
		testkit.Eventually(t, "the end of a connection", func() bool {
			return number(t, db, fmt.Sprint("SELECT COUNT(*) FROM information_schema.processlist WHERE id = ", connection)) == 0
		})
	}
}
