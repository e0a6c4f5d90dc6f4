package mysqllock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A failover makes the old writer read-only, and then another server grants. A role with SUPER may
// write to the old one all the same: a renewal there does not count, nothing is granted to one that
// waits there, and nothing is entered. A short switch costs no lock, and a release goes
// through. So it is for an ordinary role, which the server refuses by itself.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ what, grants string }{
		{"super", "ALL PRIVILEGES ON *.*"},
		{"ordinary", "ALL PRIVILEGES ON locks.*"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			m := backends.StartMariaDB(t, backends.MariaDBOptions{})
			db := sqlkit.MariaDBAdmin(t, m)
			sqlkit.Exec(t, db, "GRANT "+c.grants+" TO 'writer'@'%' IDENTIFIED BY 'w'")
			m.User, m.Password = "writer", "w"
			base := sqlkit.MariaDBStore(t, m)
			readOnly := func(on string) {
				t.Helper()
				sqlkit.Exec(t, db, "SET GLOBAL read_only = "+on)
			}
			holder, other := client(t, base, hasp.WithTTL(lasting)), client(t, base, hasp.WithTTL(lasting))
			held, released := testkit.Lock(t, holder, "held"), testkit.Lock(t, holder, "released")
			testkit.Release(t, testkit.Lock(t, other, "known"))
			waits := testkit.Locking(t, other, "released")
			testkit.Eventually(t, "two entries", func() bool { return len(testkit.Entries(t, holder, "released")) == 2 })

			readOnly("1")
			for _, name := range []string{"known", "new", "held"} { // the first by the client's own UPDATE
				if l, err := other.Mutex(name).TryLock(ctx(t)); err == nil || name != "held" && !errors.Is(err, hasp.ErrRefused) {
					t.Errorf("%q on a server that is read-only: %v, %v", name, l, err)
				}
			}
			if c.what == "super" {
				testkit.Release(t, released)
			}
			select {
			case <-waits:
				t.Error("a server that is read-only has granted")
			case <-time.After(lasting / 4):
			}
			readOnly("0")
			if c.what != "super" {
				testkit.Release(t, released)
			}
			testkit.Release(t, testkit.Granted(t, waits))
			if !held.Held() {
				t.Fatalf("lost by a short switch: %v", held.Err())
			}
			time.Sleep(lasting) // it is renewed again
			if !held.Held() {
				t.Fatalf("lost after a short switch: %v", held.Err())
			}
			readOnly("1")
			testkit.Lost(t, held, hasp.ReasonExpired)
		})
	}
}
