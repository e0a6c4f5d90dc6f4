package testkit

import (
	"context"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/faultnet"
)

// Proxy puts a bad network before the server at an address. Clients that the test's end closes
// are closed before it, if they were made after it: it has no context that would end first.
func Proxy(t testing.TB, addr string) *faultnet.Proxy {
	t.Helper()
	p, err := faultnet.New(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Proxied opens a store through a separate network to all servers of the URL. The caller closes the
// backend, and the network behind it.
func Proxied(t testing.TB, storeURL string) (driver.Backend, faultnet.Network) {
	t.Helper()
	u, err := driver.SplitURL(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	n, err := faultnet.NewNetwork(strings.Split(u.Host, ",")...)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = strings.Join(n.Addrs(), ",")
	return Open(t, u.String()), n
}

// Behind is Proxy before the one server of a store's URL, and the URL that leads through it.
func Behind(t testing.TB, storeURL string) (*faultnet.Proxy, string) {
	t.Helper()
	u, err := driver.SplitURL(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	p := Proxy(t, u.Host)
	u.Host = p.Addr()
	return p, u.String()
}

// Counted opens a store as Proxied does, and returns how much the backend has sent: it is a
// drivertest.Harness's Counted.
func Counted(storeURL string) func(testing.TB) (b driver.Backend, sent func() int64) {
	return func(t testing.TB) (driver.Backend, func() int64) {
		b, n := Proxied(t, storeURL)
		t.Cleanup(n.Close) // the caller's client is made later, and so is closed before
		return b, n.Sent
	}
}
