package backends

import (
	"math/rand/v2"
	"testing"
)

// PauseOne pauses one of several servers, as Process.Pause does, and returns what continues it.
// They must be the test's own. Who promises to survive that one is lost is to be shown it.
func PauseOne[S interface {
	Pause() error
	Resume() error
}](tb testing.TB, servers ...S) (undo func()) {
	s := servers[rand.IntN(len(servers))]
	if err := s.Pause(); err != nil {
		tb.Error(err)
	}
	return func() {
		if err := s.Resume(); err != nil {
			tb.Error(err)
		}
	}
}
