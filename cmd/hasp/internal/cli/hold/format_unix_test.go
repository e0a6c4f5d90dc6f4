//go:build unix

package hold

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// listening is a socket, and what the holder behind it is asked to do.
func listening(t *testing.T) (path string, words <-chan string) {
	t.Helper()
	socket := testkit.Must[*privateSocket](t)(listenPrivately())
	t.Cleanup(socket.close)
	h := &Holder{asked: make(chan *request)}
	asked := make(chan string, 10)
	go socket.serve(h)
	go func() {
		for r := range h.asked {
			asked <- r.word
			r.reply(State{State: "held", Name: "a"})
		}
	}()
	t.Cleanup(func() { close(h.asked) })
	return socket.path, asked
}

// ask sends one line as it is.
func ask(t *testing.T, socket, line string) string {
	t.Helper()
	conn := testkit.Must[net.Conn](t)(net.Dial("unix", socket))
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(askBound))
	fmt.Fprintln(conn, line)
	return testkit.Must[string](t)(bufio.NewReader(conn).ReadString('\n'))
}

// A hasp of another version releases nothing, and is answered in a way that tells it why. The
// control is the same question in our format.
func TestQuestionInAnotherFormat(t *testing.T) {
	socket, words := listening(t)
	for _, line := range []string{"release 0s 2", "release 1h 2 more", "release 0s", "release"} {
		if got := ask(t, socket, line); !strings.HasPrefix(got, `{"format":1,`) {
			t.Errorf("%q is answered by %q", line, got)
		}
		if word := <-words; word != AskState {
			t.Errorf("%q is taken for %q", line, word)
		}
	}
	if s, err := Ask(socket, AskRelease, 0); err != nil || s.State != "held" || <-words != AskRelease {
		t.Errorf("%+v, %v", s, err)
	}
}

// A holder of another version is refused, by a sentence that says what to do.
func TestHolderOfAnotherFormat(t *testing.T) {
	for _, said := range []string{`{"format":2,"state":"held"}`, `{"state":"held"}`} {
		socket := t.TempDir() + "/s"
		l := testkit.Must[net.Listener](t)(net.Listen("unix", socket))
		t.Cleanup(func() { l.Close() })
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadString('\n')
			fmt.Fprintln(conn, said)
			conn.Close()
		}()
		if _, err := Ask(socket, AskState, 0); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "and this program knows format 1") {
			t.Errorf("%s: %v", said, err)
		}
	}
}

// What is said on the socket. A change needs another number.
func TestSocketFormat(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	text, err := json.Marshal(answer{socketFormat, State{
		State: "held", Name: "a", Store: "s", Holder: "h", Token: 1, Locks: []view.Lock{{Name: "a", Token: 1, Holder: "h"}}, Deadline: &at,
		Socket: "x", Message: "m", Exit: 2, PID: 3, Place: 4, URL: "u", Kind: "k",
	}})
	if err != nil {
		t.Fatal(err)
	}
	testkit.SameFormat(t, "the socket of a background holder", socketFormat, []string{AskState, AskRelease, string(text)}, "b7b253eb7f343e25")
}
