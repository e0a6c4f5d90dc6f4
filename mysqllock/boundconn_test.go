package mysqllock

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// watched is both ends of a connection, ours as the strategy getlock has it, and what watches it until
// the context ends.
func watched(t *testing.T) (ours *boundConn, theirs net.Conn, watch func(ctx context.Context) <-chan error) {
	t.Helper()
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	ours = &boundConn{socket: must[net.Conn](t)(net.Dial("tcp", l.Addr().String()))}
	theirs = must[net.Conn](t)(l.Accept())
	t.Cleanup(func() { ours.socket.Close(); theirs.Close() })
	return ours, theirs, func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- new(bound).Watch(ctx, ours) }()
		return ended
	}
}

// Interrupted at any moment, a watch leaves the connection as it was: what is asked and answered
// next arrives whole.
func TestWatchStandsBack(t *testing.T) {
	t.Parallel()
	ours, theirs, watch := watched(t)
	go io.Copy(theirs, theirs) // an echo
	for i := range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := watch(ctx)
		if i%2 == 0 { // else perhaps before it has begun
			time.Sleep(time.Millisecond)
		}
		cancel()
		if err := await(t, "the end of the watch", ended); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		sent, got := []byte{byte(i), 1, 2, byte(i)}, make([]byte, 4)
		if _, err := ours.socket.Write(sent); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(ours.socket, got); err != nil || string(got) != string(sent) {
			t.Fatalf("answer %d: %v, %v; want %v", i, got, err, sent)
		}
	}
}

// What was not asked for is reported, and the end, whether it comes before the watch or under it;
// and nothing is taken out.
func TestWatchReports(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		for what, end := range map[string]func(net.Conn) error{
			"unasked": func(c net.Conn) error { _, err := c.Write([]byte("why")); return err },
			"closed":  func(c net.Conn) error { return c.Close() },
			"reset":   func(c net.Conn) error { _ = c.(*net.TCPConn).SetLinger(0); return c.Close() },
		} {
			ours, theirs, watch := watched(t)
			var ended <-chan error
			if !before {
				ended = watch(t.Context())
				time.Sleep(10 * time.Millisecond) // it waits
			}
			if err := end(theirs); err != nil {
				t.Fatal(err)
			}
			if before {
				time.Sleep(10 * time.Millisecond) // it has arrived
				ended = watch(t.Context())
			}
			if err := await(t, what, ended); err == nil || t.Context().Err() != nil {
				t.Errorf("%s, before: %t: %v", what, before, err)
			}
			if what != "unasked" {
				continue
			}
			got := make([]byte, 3)
			if _, err := io.ReadFull(ours.socket, got); err != nil || string(got) != "why" {
				t.Errorf("what was sent is not there any more: %q, %v", got, err)
			}
		}
	}
}
