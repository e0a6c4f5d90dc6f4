package testkit_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
)

// failing takes the failure of a helper instead of the testing package.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper()                      {}
func (f *failing) Errorf(form string, a ...any) { f.said = fmt.Sprintf(form, a...) }
func (f *failing) Fatal(a ...any)               { f.said = fmt.Sprint(a...); runtime.Goexit() }
func (f *failing) Fatalf(form string, a ...any) { f.Errorf(form, a...); runtime.Goexit() }

// said is the message that a helper fails with.
func said(t *testing.T, fn func(testing.TB)) string {
	f, done := &failing{TB: t}, make(chan struct{})
	go func() {
		defer close(done)
		fn(f)
	}()
	<-done
	return f.said
}

// What does not come fails the test, and the failure says what was awaited and what was there
// instead; what comes at the last moment has come.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, fn := range map[string]func(testing.TB){
			"waited 40s without success for: rain": func(t testing.TB) {
				testkit.Eventually(t, "rain", func() bool { return false })
			},
			"waited 40s without success for: rain; last seen: sun": func(t testing.TB) {
				testkit.Until(t, "rain", func() error { return errors.New("sun") })
			},
			"waited 40s without success for: news": func(t testing.TB) { testkit.Await(t, "news", make(chan int)) },
		} {
			if got := said(t, fn); got != want {
				t.Errorf("said %q, want %q", got, want)
			}
		}
		began := time.Now()
		testkit.Eventually(t, "the last moment", func() bool { return time.Since(began) >= testkit.Patience })
		news := make(chan string, 1)
		time.AfterFunc(testkit.Patience-1, func() { news <- "at last" })
		if got := testkit.Await(t, "news", news); got != "at last" {
			t.Error(got)
		}
	})
}

// The life of a lock by way of the helpers, and the loss that was not expected.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		c := testkit.ClientOn(t, store.Backend())
		l := testkit.Lock(t, c, "a")
		queued := testkit.Queued(t, c, "a")
		waiting := testkit.Waiting(t, "a", func(o hasp.Option) *hasp.Client { return testkit.ClientOn(t, store.Backend(), o) })
		testkit.Locking(t, c, "a") // ends with the test
		testkit.Release(t, l)
		l = testkit.Granted(t, queued)
		store.Lose("a")
		testkit.Lost(t, l, hasp.ReasonExpired, hasp.ReasonDenied)
		if got := said(t, func(t testing.TB) { testkit.Lost(t, l, hasp.ReasonExpired) }); !strings.Contains(got, "want one of") {
			t.Errorf("said %q of a loss for another reason", got)
		}
		if got := said(t, func(t testing.TB) { testkit.Release(t, l) }); !strings.HasPrefix(got, "release: ") {
			t.Errorf("said %q of releasing what is lost", got)
		}
		testkit.Granted(t, waiting)
		gaveUp := make(chan *hasp.Lease)
		close(gaveUp)
		if got := said(t, func(t testing.TB) { testkit.Granted(t, gaveUp) }); got != "the waiter gave up" {
			t.Errorf("said %q", got)
		}
	})
}

func TestPrints(t *testing.T) {
	testkit.Prints(t, "one\ntwo", func() { fmt.Println("one"); fmt.Println("two") })
	if got := said(t, func(t testing.TB) { testkit.Prints(t, "two", func() { fmt.Println("one") }) }); !strings.Contains(got, "one") {
		t.Errorf("said %q of what was not printed", got)
	}
}
