package pglock

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp/driver"
)

// defaultMode is the sslmode of a URL that has none: as mysqllock does, verified TLS to every host
// but this one. What goes over loopback, only root of this machine can read, and a server that was
// installed a minute ago has no certificate that anybody could verify. A URL that names files for
// TLS wants it. pgx knows where the hosts come from besides the URL (PGHOST, a service file); if one
// of several is elsewhere, all are asked for TLS.
func defaultMode(u *url.URL, q url.Values) string {
	const verified = "verify-full"
	for key := range q {
		if strings.HasPrefix(key, "ssl") {
			return verified
		}
	}
	trial := maps.Clone(q)
	trial.Set("sslmode", "disable")
	plain, err := plainURL(u, trial)
	if err != nil {
		return verified // the caller meets the same error
	}
	cfg, err := pgx.ParseConfig(plain)
	if err != nil {
		return verified // as here
	}
	hosts := []string{cfg.Host}
	for _, f := range cfg.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, h := range hosts {
		if !here(h) {
			return verified
		}
	}
	return "disable"
}

// here reports whether a host is this machine: loopback, or the directory of a socket.
func here(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasPrefix(host, "/") || ip != nil && ip.IsLoopback()
}

// explainTLS says what to add to the URL when the server and we do not agree about TLS. pgx has no
// sentinel for the first case; TestTLSErrorsNameTheCure holds its words.
func explainTLS(err error) error {
	var unknown x509.UnknownAuthorityError
	switch {
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return fmt.Errorf("%w: the server has no TLS; switch it on there (ssl = on), or add sslmode=disable to the URL, and everything travels in plaintext: %w", driver.ErrInvalid, err)
	case sqlState(err) == "28000" && strings.Contains(err.Error(), "no encryption"):
		return fmt.Errorf("add sslmode=verify-full to the URL if the server takes TLS only: %w", err)
	case errors.As(err, &unknown):
		return fmt.Errorf("%w: add sslrootcert=FILE with the certificate that has signed the server's: %w", driver.ErrInvalid, err)
	}
	return err
}
