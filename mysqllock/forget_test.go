package mysqllock

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
)

// Names that nobody has used for long are forgotten, and their next token is greater than
// their last all the same. Names in use stay, however old their last token is.
func TestForgottenNames(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	u, err := url.Parse(backends.SharedMariaDB(t).URL() + "?prefix=forget_&retention=1h")
	if err != nil {
		t.Fatal(err)
	}
	b, err := openURL(ctx, u)
	if err != nil {
		t.Fatal(err)
	}
	s := b.(*table)
	c, err := hasp.New(b)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lock := func(name string) *hasp.Lease {
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	release := func(l *hasp.Lease) uint64 {
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
		return l.Token()
	}
	last := release(lock("unused"))
	held := lock("held")
	release(lock("young"))
	if _, err := run(ctx, s.work, "UPDATE forget_names SET seq = seq - 7200000000 WHERE name <> 'young'"); err != nil {
		t.Fatal(err)
	}
	if err := s.forget(ctx, s.work); err != nil {
		t.Fatal(err)
	}
	var left, of int
	if err := row(ctx, s.work, "SELECT COUNT(*), SUM(name IN ('held', 'young')) FROM forget_names", &left, &of); err != nil {
		t.Fatal(err)
	}
	if left != 2 || of != 2 {
		t.Errorf("%d names are left, %d of them in use or young; want these two", left, of)
	}
	if next := release(lock("unused")); next <= last {
		t.Errorf("token %d after %d", next, last)
	}
	release(held)
}
