package httplock_test

import (
	"net/http/httptest"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// The server of a client that holds is killed, and another one of the same Redis adopts the lock, in each of its formats.
// What is exported after that is imported by a client on Redis itself.
func TestHeldLockMoves(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			url := backends.SharedRedis(t).URL() + "?strategy=" + strategy
			first, second := haspserve.New(t, url), haspserve.New(t, url)
			front := &balancer{}
			front.lead(first.Addr)
			proxy := httptest.NewServer(front)
			t.Cleanup(proxy.Close)
			c, beside := testkit.Client(t, "hasp+"+proxy.URL, hasp.WithTTL(calm)), testkit.Client(t, url)
			name := t.Name()
			l := testkit.LockDespiteErrors(t, c, name)
			front.lead(second.Addr)
			first.Kill()
			other := testkit.LockDespiteErrors(t, c, name+"-other") // moves the session, unless a renewal has
			// More than once if the answer came late, and the request was repeated.
			if n := front.adopted.Load(); n < 1 || !l.Held() {
				t.Fatalf("%d locks were adopted; held: %t, %v", n, l.Held(), l.Err())
			}
			if _, err := beside.Mutex(name).TryLock(t.Context()); err == nil {
				t.Fatal("another client has got it")
			}
			testkit.Release(t, other)
			text, err := l.Export()
			if err != nil {
				t.Fatal(err)
			}
			got, err := beside.Import(t.Context(), text)
			if err != nil || got.Token() != l.Token() {
				t.Fatalf("import: %v", err)
			}
			testkit.Release(t, got)
			testkit.Release(t, testkit.LockDespiteErrors(t, beside, name))
		})
	}
}
