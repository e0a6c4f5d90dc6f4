package pglock_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/testkit"
)

// withPrograms adds what random programs do to the way to the server.
func withPrograms(storeURL string, abreast int, h drivertest.Harness) drivertest.Harness {
	p := programs.Harness{AtOnce: abreast}
	if !strings.Contains(storeURL, "strategy=advisory") { // which is the database's, with any prefix
		p.Other = func(t testing.TB) driver.Backend { return testkit.Open(t, changed(t, storeURL, "prefix", "other_")) }
	}
	p.Proxied = func(t testing.TB) (driver.Backend, programs.Network) { return testkit.Proxied(t, h.URL) }
	h.Programs = p.Run
	return h
}

// changed gives a parameter of a URL another value.
func changed(t testing.TB, storeURL, key, value string) string {
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(key, value)
	u.RawQuery = q.Encode()
	return u.String()
}
