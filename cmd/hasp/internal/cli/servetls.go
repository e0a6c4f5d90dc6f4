//go:build !noserve

package cli

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
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

// onlyHere reports an address that other machines cannot reach.
func onlyHere(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
