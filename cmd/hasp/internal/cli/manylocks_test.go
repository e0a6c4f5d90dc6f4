//go:build unix

package cli

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/exit"
)

// A try that finds all of many locks taken, one slow answer after the other, says so: it is no store
// that does not answer.
func TestTryOfManyTakesItsTime(t *testing.T) {
	for _, any := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := hasptest.New()
			client, other := store.Client(t), store.Client(t)
			var names []string
			for i := range 1024 {
				names = append(names, fmt.Sprintf("worker/%04d", i))
				if !any && i < 1023 {
					continue
				}
				if _, err := other.Mutex(names[i]).TryLock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			store.Delay(20 * time.Millisecond)
			q := &acquisition{
				app:    &app{above: func() []holding { return nil }},
				client: client, flags: &lockFlags{noWait: true}, any: any, names: names, report: &reporter{began: time.Now()},
			}
			if _, err := q.run(t.Context()); exit.Of(err).Outcome != exit.OutcomeBusy {
				t.Errorf("any %t: %v", any, err)
			}
		})
	}
}
