package mysqllock

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testkit"
)

// connected is both ends of a connection, ours monitored.
func connected(t *testing.T) (ours *monitoredConn, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	ours = newMonitoredConn(c)
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// What is asked and answered arrives whole and in order, whether the reader has started
// or not; and then the end is told, once.
func TestMonitorStandsBack(t *testing.T) {
	t.Parallel()
	ours, theirs := connected(t)
	go io.Copy(theirs, theirs) // an echo
	lost := make(chan struct{}, 2)
	if !ours.watch(func() { lost <- struct{}{} }) {
		t.Fatal("it has ended before it was used")
	}
	read := 0
	for i := range 60 {
		time.Sleep(rand.N(2 * readAfter))
		ours.mu.Lock()
		if ours.reader != nil {
			read++
		}
		ours.mu.Unlock()
		sent := []byte{byte(i), 1, 2, byte(i)}
		if _, err := ours.Write(sent); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(2 * readAfter)) // the reader may read the answer
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(ours, got); err != nil || string(got) != string(sent) {
			t.Fatalf("answer %d: %v, %v; want %v", i, got, err, sent)
		}
	}
	if read == 0 {
		t.Fatal("the reader has never read")
	}
	theirs.Close()
	select {
	case <-lost:
	case <-time.After(30 * time.Second):
		t.Fatal("the end was not reported")
	}
	if _, err := ours.Read(make([]byte, 1)); err == nil {
		t.Error("reading from a connection that has ended succeeds")
	}
	if ours.watch(func() { lost <- struct{}{} }) {
		t.Error("an ended connection can be watched")
	}
	time.Sleep(3 * readAfter)
	if len(lost) > 0 {
		t.Error("told twice")
	}
}

// There is no reader on a connection that no lock depends on: the library may leave it idle.
func TestMonitorOff(t *testing.T) {
	t.Parallel()
	ours, theirs := connected(t)
	ours.watch(func() { t.Error("told of a connection that nothing depends on") })
	ours.watch(nil)
	if _, err := theirs.Write([]byte("later")); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	time.Sleep(3 * readAfter)
	got, err := io.ReadAll(ours)
	if string(got) != "later" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

// The library's look at an idle connection keeps the reader away and disturbs nothing. What was not
// asked for, and the end, are told, also where the reader has read them.
func TestMonitorLook(t *testing.T) {
	t.Parallel()
	ours, theirs := connected(t)
	ours.watch(func() {})
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	reading := func() bool {
		ours.mu.Lock()
		defer ours.mu.Unlock()
		return ours.reader != nil
	}
	look := func() error { return raw.Read(func(uintptr) bool { return true }) }
	testkit.Eventually(t, "the reader reads", reading)
	beside, looked := false, false
	err = raw.Read(func(uintptr) bool {
		beside, looked = reading(), true
		return true
	})
	if err != nil || beside || !looked {
		t.Errorf("a look: %v, made %t, beside the reader %t", err, looked, beside)
	}
	if _, err := theirs.Write([]byte("unasked")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a look that tells what was sent", func() bool {
		time.Sleep(2 * readAfter) // after which the reader reads
		return errors.Is(look(), errUnasked)
	})
	theirs.Close()
	testkit.Eventually(t, "the reader's end", func() bool {
		ours.mu.Lock()
		defer ours.mu.Unlock()
		return ours.err != nil
	})
	if err := look(); !errors.Is(err, io.EOF) {
		t.Errorf("a look after the end: %v", err)
	}
}
