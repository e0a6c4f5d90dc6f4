package redlock_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	_ "github.com/hasplock/hasp/redlock"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

// open opens a store by its URL, as hasp.Open does.
func open(t testing.TB, storeURL string) driver.Backend {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b, err := driver.Lookup(u.Scheme)(ctx, u)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// urlOf names the servers.
func urlOf(nodes []*backends.Redis) string {
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	return "redlock://" + strings.Join(addrs, ",")
}

// Two seconds, since a renewal has to be answered by three servers out of five that share
// a machine with the tests.
func TestConformance(t *testing.T) {
	nodes := five(t)
	storeURL := urlOf(nodes)
	drivertest.Run(t, withPrograms(nodes, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
		TTL:  T,
	}))
}
