package pglock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// The server and we do not agree about TLS: the error says what to add to the URL.
func TestTLSErrorsNameTheCure(t *testing.T) {
	t.Parallel()
	plain := backends.SharedPostgres(t)
	secure := backends.StartPostgres(t, backends.PostgresOptions{TLS: true})
	for storeURL, cure := range map[string]string{
		"postgres://postgres@" + plain.Addr + "/postgres?sslmode=verify-full":  "add sslmode=disable",
		"postgres://postgres@" + secure.Addr + "/postgres?sslmode=verify-full": "add sslrootcert=FILE",
		"postgres://postgres@" + secure.Addr + "/postgres":                     "add sslmode=verify-full",
	} {
		_, err := hasp.Open(t.Context(), storeURL)
		if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), cure) {
			t.Errorf("%s: %v; want %q", storeURL, err, cure)
		}
	}
	testkit.Release(t, testkit.Lock(t, client(t, secure.URL()), "a")) // the control
}

// Without sslmode, loopback is spoken to in plaintext and every other host with verified TLS.
func TestLoopbackNeedsNoTLS(t *testing.T) {
	t.Parallel()
	plain := backends.SharedPostgres(t)
	testkit.Release(t, testkit.Lock(t, client(t, "postgres://postgres@"+plain.Addr+"/postgres?schema=loopback"), "a"))
}
