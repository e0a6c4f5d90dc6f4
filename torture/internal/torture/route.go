//go:build unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/faultnet"
)

// ports are those of a URL without one, by scheme. Of other schemes, which only adapters know, the
// URL has to say the port; without one there is no network that a proxy could be put into.
var ports = map[string]string{
	"redis": "6379", "rediss": "6379", "valkey": "6379", "valkeys": "6379", "redlock": "6379", "redlocks": "6379",
	"etcd": "2379", "zookeeper": "2181", "postgres": "5432", "postgresql": "5432", "mysql": "3306",
	"http": "80", "https": "443",
}

// servers are the parameters with the server's URL, by scheme, where the host is something else.
var servers = map[string]string{"kube": "server", "s3": "endpoint"}

// server is the URL of the store's server, which mostly is the store's.
func server(u *url.URL) *url.URL {
	param := servers[u.Scheme]
	if param == "" {
		return u
	}
	s, err := url.Parse(u.Query().Get(param))
	if err != nil {
		s = &url.URL{}
	}
	return s
}

// targets are the host:port of a store's URL; none if it has no network.
func targets(u *url.URL) (all []string) {
	u = server(u)
	port := ports[u.Scheme]
	if strings.HasPrefix(u.Scheme, "hasp+") { // what passes there is no lock's own protocol
		return nil
	}
	all, err := driver.Hosts(u.Host, port)
	if err != nil || slices.ContainsFunc(all, func(a string) bool { return strings.HasSuffix(a, ":") }) {
		return nil // none, or no port
	}
	return all
}

// OnThisMachine reports whether a store is reached without leaving this machine, by a server of
// hasp's as well. A store that cannot be understood is not.
func OnThisMachine(storeURL string) bool {
	u, err := driver.SplitURL(storeURL)
	if err != nil {
		return false
	}
	u = server(u)
	return u.Scheme == "file" || u.Host != "" && !slices.ContainsFunc(strings.Split(u.Host, ","), func(h string) bool {
		return !loopback(h)
	})
}

// loopback is of a host, or a host:port.
func loopback(target string) bool {
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		host = strings.Trim(target, "[]")
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// Disturbable returns nil if a proxy can stand between a client and the store that a URL names, or
// the reason why not: then only the faults of [Local] can be made.
func Disturbable(storeURL string) error {
	u, err := driver.SplitURL(storeURL)
	if err != nil {
		return errors.New("the store's URL cannot be understood")
	}
	q, all := u.Query(), targets(u)
	strict := u.Scheme == "postgres" || u.Scheme == "postgresql"
	mode := q.Get("sslmode")
	switch {
	case len(all) == 0:
		return errors.New("this store is not reached by a network address in its URL")
	case q.Has("sentinel"), len(all) > 1 && (strings.HasPrefix(u.Scheme, "redis") || strings.HasPrefix(u.Scheme, "valkey")):
		return errors.New("the clients of a Sentinel set or a cluster learn their servers' addresses from the servers, and would pass the proxies by")
	case u.Scheme == "etcd" && secured(u):
		return errors.New("etcd's client demands the server's name in its certificate, and the proxy has another")
	case strict && mode == "verify-full", strict && mode == "" && slices.ContainsFunc(all, func(t string) bool { return !loopback(t) }):
		return errors.New("sslmode=verify-full demands the server's name in its certificate, and the proxy has another; use sslmode=verify-ca or require")
	case secured(u) && len(all) > 1 && !q.Has("servername"):
		return errors.New("several servers with TLS need the parameter servername, since the proxies have other names")
	}
	return nil
}

// secured reports whether the connections use TLS, for the stores that take package tlsparams'
// parameters.
func secured(u *url.URL) bool {
	q := u.Query()
	if q.Get("tls") == "false" {
		return false
	}
	return slices.Contains([]string{"rediss", "valkeys", "redlocks", "https"}, server(u).Scheme) || q.Has("tls") || q.Has("ca") || q.Has("cert") ||
		q.Has("servername") || u.Scheme == "mysql" && slices.ContainsFunc(targets(u), func(t string) bool { return !loopback(t) })
}

// proxies starts one proxy to each server of a store, and returns the URL that leads through
// them. TLS goes on: a driver that demands it of a distant host only would drop it for a proxy on
// loopback, and send a password in plain text to the real one.
func proxies(storeURL string) (faultnet.Network, string, error) {
	u, err := driver.SplitURL(storeURL)
	if err != nil {
		return nil, "", errors.New("the store's URL cannot be understood")
	}
	all := targets(u)
	var n faultnet.Network
	for _, target := range all {
		p, err := faultnet.NewRemote(context.Background(), target)
		if err != nil {
			n.Close()
			return nil, "", fmt.Errorf("start a proxy: %w", err)
		}
		n = append(n, p)
	}
	q := u.Query()
	if secured(u) && !q.Has("servername") {
		host, _, _ := net.SplitHostPort(all[0])
		q.Set("servername", host)
		u.RawQuery = q.Encode()
	}
	if s := server(u); s != u && len(n) > 0 {
		s.Host = n.Addrs()[0]
		q.Set(servers[u.Scheme], s.String())
		u.RawQuery = q.Encode()
	} else {
		u.Host = strings.Join(n.Addrs(), ",")
	}
	return n, u.String(), nil
}
