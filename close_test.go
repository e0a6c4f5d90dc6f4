package hasp_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/memlock"
)

// stuck is a connection whose Close hangs, too.
type stuck struct {
	*spoiled
	closing <-chan struct{}
}

func (b stuck) Close() error {
	<-b.closing
	return b.spoiled.Backend.Close()
}

// A driver must end its calls with their contexts, and close. With one that does neither, Close
// returns within seven seconds, and says what has not ended.
func TestCloseInTime(t *testing.T) {
	calls := []string{"open", "keepalive", "enqueue", "wait", "leave", "close"}
	for what, c := range map[string]struct {
		hang         []string // calls
		closes       bool
		want, absent string
	}{
		"all is well":          {nil, true, "", ""},
		"its calls hang":       {calls, true, "requests that were cancelled", "connections"},
		"its Close hangs":      {nil, false, "the closing of its connections", "requests"},
		"calls and Close hang": {calls, false, "requests that were cancelled, nor the closing of its connections", "nothing"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ever := make(chan struct{})
				store := memlock.New()
				b := stuck{&spoiled{Backend: store.Backend()}, ever}
				if c.closes {
					closed := make(chan struct{})
					close(closed)
					b.closing = closed
				}
				c1, c2 := client(t, b), client(t, store.Backend())
				lock(t, c1, "held")
				taken := lock(t, c2, "taken")
				waits := lockLater(t.Context(), c1, "taken")
				synctest.Wait()
				for _, call := range c.hang {
					b.plan(call, plan{hang: ever})
				}
				began := time.Now()
				err := c1.Close()
				if took := time.Since(began); took > 7*time.Second {
					t.Errorf("closed after %s", took)
				}
				switch {
				case c.want == "" && err != nil:
					t.Error(err)
				case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), c.absent)):
					t.Errorf("%v, want %q", err, c.want)
				}
				close(ever)
				if r := <-waits; r.err == nil {
					t.Error("granted after the end")
				}
				if err := taken.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
