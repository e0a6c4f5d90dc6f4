//go:build unix

package hold

import (
	"os"
	"testing"

	"github.com/hasplock/hasp/internal/testkit"
)

// When a release is answered, the socket is gone.
func TestReleaseLeavesNoSocket(t *testing.T) {
	for range 200 {
		socket := testkit.Must[*privateSocket](t)(listenPrivately())
		h := &Holder{asked: make(chan *request), settled: make(chan struct{})}
		h.Lock = Lock{State: func() State { return State{State: "held"} }, Release: func() error { return nil }}
		ended := make(chan State)
		go func() { ended <- h.until(t.Context(), socket) }()
		s, err := Ask(socket.path, AskRelease, 0)
		if _, gone := os.Lstat(socket.path); err != nil || s.State != "released" || gone == nil {
			t.Errorf("%+v, %v, and the socket: %v", s, err, gone)
		}
		<-ended
	}
}
