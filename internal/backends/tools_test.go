package backends

import (
	"fmt"
	"strings"
	"testing"
)

// recorder notes how need complains instead of ending the test.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper()           {}
func (r *recorder) Skip(args ...any)  { r.said = "skip: " + fmt.Sprint(args...) }
func (r *recorder) Fatal(args ...any) { r.said = "fatal: " + fmt.Sprint(args...) }

func TestMissingServer(t *testing.T) {
	need(t)
	t.Setenv("PATH", "") // without apt-get nothing can be installed
	missing := &tool{name: "nosuchd", debs: []string{"nosuch-server"}, files: []string{"/nonexistent/nosuchd"}}
	for _, c := range []struct{ demand, want string }{{"", "skip: "}, {"1", "fatal: "}} {
		t.Setenv("REQUIRE_BACKENDS", c.demand)
		r := &recorder{TB: t}
		need(r, redisServer, missing)
		if !strings.HasPrefix(r.said, c.want) {
			t.Errorf("REQUIRE_BACKENDS=%q: %q, want %s", c.demand, r.said, c.want)
		}
		for _, part := range []string{"nosuchd is not installed", "make backends", "nosuch-server"} {
			if !strings.Contains(r.said, part) {
				t.Errorf("%q does not say %q", r.said, part)
			}
		}
		if strings.Contains(r.said, "redis") || strings.Contains(r.said, "\n") {
			t.Errorf("%q is more than one line about what is missing", r.said)
		}
	}
}

func TestPresentServerIsNoComplaint(t *testing.T) {
	need(t, redisServer)
	r := &recorder{TB: t}
	if need(r, redisServer); r.said != "" {
		t.Errorf("redis-server is there, yet: %s", r.said)
	}
}
