package pglock

import (
	"net/url"
	"testing"

	"github.com/hasplock/hasp/driver"
)

// Verified TLS to every host but this machine, as in mysqllock.
func TestDefaultMode(t *testing.T) {
	for raw, tls := range map[string]bool{
		"postgres://127.0.0.1/db":                          false,
		"postgres://127.8.8.8:6000/db":                     false,
		"postgres://[::1]/db":                              false,
		"postgres://localhost,127.0.0.1:6000/db":           false,
		"postgres:///db?host=/run/postgresql":              false,
		"postgres://192.0.2.1/db":                          true,
		"postgres://db.example.org/db":                     true,
		"postgres://localhost.example.org/db":              true,
		"postgres://localhost,db.example.org/db":           true,
		"postgres:///db?host=db.example.org":               true,
		"postgres://127.0.0.1/db?sslmode=verify-full":      true,
		"postgres://127.0.0.1/db?sslmode=require":          true,
		"postgres://db.example.org/db?sslmode=disable":     false,
		"postgres://127.0.0.1/db?application_name=sslmode": false,
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := connConfig(u, driver.NewParams(u.Query()))
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if (cfg.TLSConfig != nil) != tls {
			t.Errorf("%s: TLS %t, want %t", raw, !tls, tls)
		}
		for _, f := range cfg.Fallbacks {
			if (f.TLSConfig != nil) != tls {
				t.Errorf("%s: TLS to %s: %t, want %t", raw, f.Host, !tls, tls)
			}
		}
	}
}
