//go:build unix

package cli

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/memlock"
)

// The library's sessions are renewed while their places wait in a queue, and after a loss. People
// are told of the lock, which is renewed from its grant to its release.
func TestRenewedWhileHeld(t *testing.T) {
	client, err := hasp.New(memlock.New().Backend())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lease, err := client.Mutex("a").TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	r := &reporter{app: &app{streams: streams{stderr: &said}}, name: "a", verbose: true}
	renewed := func(want int) {
		t.Helper()
		r.Observe(hasp.Event{Kind: hasp.EventRenewed})
		if got := strings.Count(said.String(), `hasp: renewed "a"`+"\n"); got != want {
			t.Errorf("%d times, want %d: %s", got, want, said.String())
		}
	}
	renewed(0)
	r.held(leaseOf(lease))
	renewed(1)
	settle(&job.Ending{}, lease, r, nil)
	renewed(1)
}
