package redlock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// The servers are asked for whole milliseconds, and a session is granted no more than that.
func TestGrantsWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	b := testkit.Open(t, urlOf(backends.StartRedisNodes(t, 3, backends.RedisOptions{})))
	defer b.Close()
	const asked = 2*time.Second + 999*time.Microsecond
	s, granted, err := b.Open(t.Context(), driver.SessionOptions{TTL: asked, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	if granted != 2*time.Second {
		t.Errorf("granted %s", granted)
	}
	if granted, err = s.KeepAlive(t.Context()); err != nil || granted != 2*time.Second {
		t.Errorf("renewed for %s, %v", granted, err)
	}
}
