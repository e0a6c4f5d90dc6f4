//go:build !noserve

package cli

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"net/url"
	"os"
	"strings"
)

// tls is nil without certificates.
func (f *serveFlags) tls() (*tls.Config, error) {
	if f.cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, misconfigured("--cert and --key: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if f.clientCA == "" {
		return c, nil
	}
	if c.ClientCAs, err = authorities("--client-ca", f.clientCA); err != nil {
		return nil, err
	}
	// Required of all, also of probes: a connection without one ends before any of its bytes are read as HTTP.
	c.ClientAuth = tls.RequireAndVerifyClientCert
	return c, nil
}

// authorities reads a file of a flag.
func authorities(flag, file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, misconfigured("%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, misconfigured("%s: %s has no certificate in PEM", flag, file)
	}
	return pool, nil
}

// passOn is how requests reach other servers. They carry the tokens of clients, and so need TLS unless they stay on this machine.
func (f *serveFlags) passOn(own *tls.Config) (urls []*url.URL, c *tls.Config, err error) {
	for _, text := range f.peers {
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "":
			return nil, nil, usage("--peers: not the URL of a server, such as https://locks-1.example.com:7070")
		case u.Scheme == "http" && !onlyHere(u.Hostname()):
			return nil, nil, misconfigured("--peers: %s is on another machine: use https, since requests carry tokens", quoteArg(u.Host))
		}
		urls = append(urls, u)
	}
	if f.peersCA == "" && own == nil {
		return urls, nil, nil
	}
	c = &tls.Config{MinVersion: tls.VersionTLS12}
	if own != nil && f.clientCA != "" {
		c.Certificates = own.Certificates // the others want one, too
	}
	if f.peersCA != "" {
		c.RootCAs, err = authorities("--peers-ca", f.peersCA)
	}
	return urls, c, err
}

// onlyHere reports an address that other machines cannot reach.
func onlyHere(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
