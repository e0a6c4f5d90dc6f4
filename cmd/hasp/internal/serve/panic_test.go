package serve

import (
	"bufio"
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/memlock"
)

// panics is a wait with a fault.
type panics struct{ waiting }

func (panics) wait(time.Duration) bool { panic("a fault") }

// A fault in a parked request costs an answer: outside of net/http, which sees to that for all others, it would end
// the process, and the locks of all sessions with it.
func TestParkedPanic(t *testing.T) {
	var log bytes.Buffer
	s, err := New(Options{Store: memlock.New().Backend(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ours, client := net.Pipe()
	defer client.Close()
	defer ours.Close()
	r := &reply{waits: panics{}, path: "/v1/locks/1"}
	k := &parked{parking: &s.parking, conn: ours, waits: r.waits}
	s.background.Add(1)
	go k.answer(s, r, false)
	_ = client.SetDeadline(time.Now().Add(time.Minute))
	answer, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil || answer.StatusCode != http.StatusInternalServerError {
		t.Fatalf("%+v, %v", answer, err)
	}
	s.Close() // waits for the goroutine
	if said := log.String(); !strings.Contains(said, "a fault") || !strings.Contains(said, "/v1/locks") || !strings.Contains(said, "panic_test.go") {
		t.Errorf("the log: %s", said)
	}
}
