package backends

import (
	"math/rand/v2"
	"testing"
)

// PauseOne pauses one of several servers, as Process.Pause does, and returns the function that
// continues it. The servers must be the test's own. It is for stores that promise to survive the
// loss of one server.
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
