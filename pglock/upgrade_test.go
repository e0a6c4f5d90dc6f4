package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/pglock"
)

// Tables of an earlier version are brought up to date while its clients are at work: those go
// on, by the functions that they know, and exclude the clients of this version. The server
// may undo a statement that waits for the migration while that waits for it; such a one
// is asked again, as they do.
func TestUpgrade(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := private(t)
	do(t, server.URL(), pglock.Script("public", "hasp_", 4))
	old := func(stmt string) error {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		for {
			_, err = conn.Exec(t.Context(), stmt)
			if e := new(pgconn.PgError); !errors.As(err, &e) || e.Code != "40P01" && e.Code != "40001" {
				return err
			}
		}
	}
	enter := func(session, name, id string) string {
		return fmt.Sprintf("SELECT e.*, '%[3]s'::text FROM hasp_enter('first', true, hasp_turn('%[2]s', 16), '%[3]s', '%[1]s', 2147483647, 2147483647, '', 0, '') e", session, name, id)
	}
	if err := old("SELECT hasp_begin('old', 600000000); " + enter("old", "held", "x")); err != nil {
		t.Fatal(err)
	}
	// Who only looks creates nothing.
	if q := testkit.Entries(t, client(t, server.URL()+"&prefix=none_"), "held"); len(q) != 0 {
		t.Error(q)
	}

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var begun sync.WaitGroup
	for i := range 4 {
		begun.Add(1)
		wg.Go(func() {
			session := fmt.Sprint("s", i)
			if err := old(fmt.Sprintf("SELECT hasp_begin('%s', 600000000)", session)); err != nil {
				t.Error(err)
			}
			for n := 0; ; n++ {
				for _, stmt := range []string{
					enter(session, session, "id-"+session),
					fmt.Sprintf("SELECT hasp_renew('%s', 600000000)", session),
					fmt.Sprintf("SELECT hasp_publish('%[1]s', '%[1]s', 'id-%[1]s', 'v')", session),
					fmt.Sprintf("SELECT hasp_leave(hasp_turn('%[1]s', 0), '%[1]s', 'id-%[1]s')", session),
					"SELECT hasp_sweep(hasp_now() - 86400000000)",
					fmt.Sprintf("SELECT hasp_grant('b%[1]s', NULL, 'x', '', 0, 1)", session),
				} {
					if err := old(stmt); err != nil {
						t.Errorf("%s: %v", stmt, err)
						return
					}
				}
				if n == 2 {
					begun.Done()
				}
				select {
				case <-stop:
					if n > 4 {
						return
					}
				default:
				}
			}
		})
	}
	begun.Wait()
	if ask[bool](t, server.URL(), "SELECT to_regclass('none_schema') IS NOT NULL") {
		t.Error("a look has made tables")
	}
	// But what an earlier version has made he brings up to date, rather than see nothing in it.
	c := client(t, server.URL())
	if q := testkit.Entries(t, c, "held"); len(q) != 1 || q[0].ID != "x" {
		t.Errorf("held by a client of the version before: %+v", q)
	}
	if _, err := c.Mutex("held").TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("held by a client of the version before: %v", err)
	}
	testkit.Release(t, testkit.Lock(t, c, "free"))
	close(stop)
	wg.Wait()
	if v := ask[int](t, server.URL(), "SELECT max(version) FROM hasp_schema"); v != pglock.Latest {
		t.Errorf("version %d", v)
	}
}

// Who has the tables for long (a dump) keeps them from being brought up to date, and is not
// waited for: all others would wait behind, holders among them.
func TestUpgradeWaitsForNobody(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := private(t)
	do(t, server.URL(), pglock.Script("public", "hasp_", 4))
	dump, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Close(context.Background())
	if _, err := dump.Exec(t.Context(), "BEGIN; SELECT FROM hasp_entries"); err != nil {
		t.Fatal(err)
	}
	c := client(t, server.URL())
	_, err = c.Mutex("a").Lock(testkit.Context(t))
	if e := new(pgconn.PgError); !errors.As(err, &e) || e.Code != "55P03" {
		t.Errorf("while a dump has the tables: %v", err)
	}
	if _, err := dump.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	testkit.Release(t, testkit.Lock(t, c, "a"))
}
