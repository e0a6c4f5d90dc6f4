package redislock_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// Clients that may ask for the server's run id share a prefix with clients that may not: neither
// kind closes the server for the other.
func TestRightToInfo(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			do(t, server, "ACL", "SETUSER", "noinfo", "on", ">secret", "~*", "&*", "+@all", "-info")
			may := client(t, server.URL()+"?strategy="+strategy)
			mayNot := client(t, fmt.Sprintf("redis://noinfo:secret@%s?strategy=%s", server.Addr, strategy))
			testkit.Release(t, testkit.Lock(t, may, "a")) // the mark has the run id; the server is said to be new
			held := testkit.Lock(t, mayNot, "held")
			for range 2 {
				renewed(t, held)
				testkit.Release(t, testkit.Lock(t, may, "a"))
				testkit.Release(t, testkit.Lock(t, mayNot, "a"))
			}
			if !held.Held() {
				t.Error(held.Err())
			}
			if d, err := may.Inspect(t.Context(), "a"); err != nil || d.Quarantine != 0 {
				t.Errorf("%+v, %v", d, err)
			}
			if d, err := mayNot.Inspect(t.Context(), "a"); err != nil || d.Quarantine != 0 {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

// One that may not ask, on a server that has no mark, closes it once for those that may.
func TestRightToInfoOnAnEmptiedServer(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	do(t, server, "ACL", "SETUSER", "noinfo", "on", ">secret", "~*", "&*", "+@all", "-info")
	may := client(t, server.URL())
	mayNot := client(t, fmt.Sprintf("redis://noinfo:secret@%s", server.Addr))
	if _, err := mayNot.Mutex("a").TryLock(t.Context()); !errors.Is(err, hasp.ErrQuarantine) {
		t.Errorf("a server whose start is unknown: %v", err)
	}
	testkit.Release(t, testkit.Lock(t, may, "a"))
	held := testkit.Lock(t, mayNot, "held")
	renewed(t, held)
	testkit.Release(t, testkit.Lock(t, may, "a"))
	testkit.Release(t, held)
}

// Without the right to WAIT no grant can be confirmed by replicas: that is refused before anything
// is made.
func TestRightToWait(t *testing.T) {
	for _, strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			do(t, server, "ACL", "SETUSER", "nowait", "on", ">secret", "~*", "&*", "+@all", "-wait")
			storeURL := fmt.Sprintf("redis://nowait:secret@%s?strategy=%s", server.Addr, strategy)
			testkit.Release(t, testkit.Lock(t, client(t, storeURL), "a")) // the control
			if _, err := client(t, storeURL+"&wait=1").Mutex("a").Lock(t.Context()); !errors.Is(err, hasp.ErrRefused) {
				t.Errorf("locked, or not refused: %v", err)
			}
			if left := testkit.Entries(t, client(t, server.URL()+"?strategy="+strategy), "a"); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
