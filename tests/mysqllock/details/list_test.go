package mysqllock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// The first entries of a queue are what a longer list begins with, those that hold before those
// that wait; and who leads is asked of the server as one row.
func TestListLimit(t *testing.T) {
	t.Parallel()
	b := testkit.Open(t, sqlkit.With(serverURL(t), "prefix=limits_"))
	defer b.Close()
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: time.Hour, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	for i := range 5 {
		if _, err := s.Ticket(request("limit", fmt.Sprint("limit-", i))).Enqueue(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	for limit, want := range map[int]int{0: 5, 1: 1, 3: 3, 5: 5, 9: 5} {
		list, err := b.List(ctx(t), "limit", limit)
		if err != nil || len(list) != want {
			t.Errorf("limit %d: %d entries, %v; want %d", limit, len(list), err, want)
		}
		for i, e := range list {
			if e.ID != fmt.Sprint("limit-", i) {
				t.Errorf("limit %d: entry %d is %s", limit, i, e.ID)
			}
		}
	}
}
