package serve_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/httplock"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

// The driver over the server keeps every promise of the store in memory behind it. On real stores,
// and with the server as a process, tests/httplock does the same.
func TestConformance(t *testing.T) {
	_, addr := start(t, serve.Options{Store: memlock.New().Backend()})
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, addr, "") },
		URL:  "hasp+http://" + addr,
		TTL:  2 * time.Second,
	})
}

// start serves on loopback until the test ends.
func start(t testing.TB, o serve.Options) (*serve.Server, string) {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := serve.New(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := serve.HTTP(s)
	go func() { _ = h.Serve(l) }() // ends with Close
	t.Cleanup(func() {
		_ = h.Close()
		s.Close()
	})
	return s, l.Addr().String()
}

func open(t testing.TB, addr, token string) driver.Backend {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, err := httplock.New(ctx, "http://"+addr, &httplock.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var _ http.Handler = (*serve.Server)(nil)

// The server passes on the places that its store tells.
func TestPlaces(t *testing.T) {
	_, addr := start(t, serve.Options{Store: memlock.New().Backend()})
	testkit.Places(t, open(t, addr, ""), 1, 2, 3)
}
