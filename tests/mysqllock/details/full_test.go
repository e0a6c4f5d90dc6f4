package mysqllock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// The disk is full, which is here a table space that may not grow: new names are refused and
// told why, what is held is released, and with room all goes on.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{
		"innodb_data_file_path=ibdata1:12M", "innodb_file_per_table=0"}})
	base := sqlkit.MariaDBStore(t, m)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	sqlkit.Exec(t, db, "CREATE TABLE ballast (n INT AUTO_INCREMENT PRIMARY KEY, b VARBINARY(8000))")
	c := client(t, base)
	held := testkit.Lock(t, c, "held")
	for size := 7000; size > 10; size /= 2 {
		for {
			if _, err := db.Exec("INSERT INTO ballast (b) VALUES (REPEAT('x', ?))", size); err != nil {
				break
			}
		}
	}
	long := ""
	for range 500 {
		long += "n"
	}
	refused := false
	for i := range 200 {
		_, err := c.Mutex(long + string(rune('a'+i%26)) + string(rune('a'+i/26))).TryLock(ctx(t))
		if err != nil {
			if !errors.Is(err, driver.ErrRefused) {
				t.Fatalf("with a full disk: %v", err)
			}
			refused = true
			break
		}
	}
	if !refused {
		t.Fatal("the disk was not full: this has tested nothing")
	}
	if !held.Held() {
		t.Errorf("lost: %v", held.Err())
	}
	if err := held.Release(context.Background()); err != nil {
		t.Errorf("release with a full disk: %v", err)
	}
	sqlkit.Exec(t, db, "DELETE FROM ballast LIMIT 200")
	testkit.Eventually(t, "locks when there is room", func() bool {
		var l *hasp.Lease
		l, err := c.Mutex("after").TryLock(ctx(t))
		return err == nil && l.Release(ctx(t)) == nil
	})
}
