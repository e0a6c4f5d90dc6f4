package pglock

import (
	"maps"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// defaultMode is the sslmode of a URL that has none: as mysqllock does, verified TLS to every host
// but this one. What goes over loopback, only root of this machine can read, and a server that was
// installed a minute ago has no certificate that anybody could verify. A URL that names files for
// TLS wants it. pgx knows where the hosts come from besides the URL (PGHOST, a service file); if
// one of several is elsewhere, all are asked for TLS.
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
