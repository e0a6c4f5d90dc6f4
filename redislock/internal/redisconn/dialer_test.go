package redisconn

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// A connection that is made just when all are closed does not stay open: a request on it would
// outlast its context, which has closed them.
func TestMadeWhileClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := newDialer(func() {})
	dialing, connect := make(chan struct{}), make(chan struct{})
	nd := &net.Dialer{Control: func(string, string, syscall.RawConn) error {
		close(dialing)
		<-connect
		return nil
	}}
	ended := make(chan error, 1)
	go func() {
		_, err := d.dial(t.Context(), l.Addr().String(), nd, nil)
		ended <- err
	}()
	await(t, "the dial", dialing)
	d.mu.Lock() // a connection is made, and not registered
	close(connect)
	server, err := l.Accept()
	if err != nil {
		d.mu.Unlock()
		t.Fatal(err)
	}
	defer server.Close()
	time.Sleep(100 * time.Millisecond) // for the dial to return: before, it is cancelled in any case
	for cancel := range d.dialing {    // what close does: it finds no open connection
		(*cancel)()
	}
	d.mu.Unlock()
	if err := await(t, "the end of the dial", ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("dialled with %v, although it was cancelled", err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := server.Read(make([]byte, 1))
		read <- err
	}()
	if err := await(t, "the end of the connection", read); err == nil {
		t.Error("something was sent on it")
	}
	if len(d.open) > 0 {
		t.Errorf("%d connections are open", len(d.open))
	}
}

// await receives what must come. Only a fault takes that long.
func await[V any](t *testing.T, what string, from <-chan V) (v V) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(40 * time.Second):
		t.Fatalf("%s has not come", what)
	}
	return v
}
