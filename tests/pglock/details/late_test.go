package pglock_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// latecomer is a proxy that holds one request back until it is told to deliver it, also if the
// client has closed the connection meanwhile, as a network can. A request to cancel a statement is
// lost: a late one would meet what is delivered.
type latecomer struct {
	caught, deliver chan struct{}
	Deliver         func()
}

// cancelRequest is how one begins, which has a connection to itself: its length and its code.
var cancelRequest = []byte{0, 0, 0, 16, 4, 210, 22, 46}

// behindLate puts one before the server of a URL. It holds what contains the text, once.
func behindLate(t *testing.T, storeURL, text string) (*latecomer, string) {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &latecomer{caught: make(chan struct{}), deliver: make(chan struct{})}
	l.Deliver = sync.OnceFunc(func() { close(l.deliver) })
	t.Cleanup(func() { listener.Close(); l.Deliver() })
	var held atomic.Bool
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			go func() {
				io.Copy(client, up)
				client.Close()
			}()
			go func() {
				defer up.Close()
				buf := make([]byte, 1<<16)
				for {
					n, err := client.Read(buf)
					if n == 16 && bytes.HasPrefix(buf, cancelRequest) {
						client.Close()
						return
					}
					if bytes.Contains(buf[:n], []byte(text)) && held.CompareAndSwap(false, true) {
						close(l.caught)
						<-l.deliver
					}
					if _, failed := up.Write(buf[:n]); failed != nil || err != nil {
						return
					}
				}
			}()
		}
	}()
	u.Host = listener.Addr().String()
	return l, u.String()
}

// wait returns when the request is held.
func (l *latecomer) wait(ctx context.Context, t *testing.T) {
	t.Helper()
	select {
	case <-l.caught:
	case <-ctx.Done():
		t.Fatal("the request was never sent")
	}
}

// firstEnds puts a proxy before the server of a URL that tells when a client has closed its first
// connection.
func firstEnds(t *testing.T, storeURL string) (ended <-chan struct{}, proxied string) {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	server, first := u.Host, make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			go io.Copy(client, up)
			go func() {
				io.Copy(up, client)
				if n == 0 {
					close(first)
				}
				client.Close()
				up.Close()
			}()
		}
	}()
	u.Host = listener.Addr().String()
	return first, u.String()
}
