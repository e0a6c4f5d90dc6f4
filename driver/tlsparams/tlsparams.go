// Package tlsparams reads what the URL of a store says about TLS, for drivers whose store speaks
// it. It is apart from package driver because crypto/tls makes a program a quarter larger, which
// a program that locks in memory or in files should not pay for.
package tlsparams

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/hasplock/hasp/driver"
)

// Params are the parameters of a URL about TLS. Nothing has been read of the files yet: a URL is
// checked as a whole before any I/O.
type Params struct {
	set, on               bool // tls=, if it is there
	ca, cert, key, server string
}

// Take takes five parameters: tls, true or false; ca, a file with the certificates that may
// vouch for a server (the system's, if absent); cert and key, files with what the client shows
// of itself; servername, the name that the server's certificate must have (the host's, if
// absent). All files are in PEM.
func Take(p *driver.Params) Params {
	return Params{
		set: p.Has("tls"), on: p.Bool("tls", false),
		ca: p.String("ca", ""), cert: p.String("cert", ""), key: p.String("key", ""), server: p.String("servername", ""),
	}
}

// Off reports whether the URL says tls=false.
func (t Params) Off() bool { return t.set && !t.on }

// ServerName is the parameter servername.
func (t Params) ServerName() string { return t.server }

// Config reads the files. It returns nil if there is to be no TLS: where tls=false, or where no
// parameter asks for it and byDefault is false. An error wraps driver.ErrInvalid; it names the
// parameter and shows nothing of what is in a file.
func (t Params) Config(byDefault bool) (*tls.Config, error) {
	given := t.ca != "" || t.cert != "" || t.key != "" || t.server != ""
	if t.Off() && given {
		return nil, fmt.Errorf("%w: ca, cert, key and servername need tls=true", driver.ErrInvalid)
	}
	if t.Off() || !t.on && !given && !byDefault {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.server}
	if (t.cert == "") != (t.key == "") {
		return nil, fmt.Errorf("%w: parameters cert and key belong together", driver.ErrInvalid)
	}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, fmt.Errorf("%w: parameter ca: %w", driver.ErrInvalid, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: parameter ca: no PEM certificate in %s", driver.ErrInvalid, t.ca)
		}
	}
	if t.cert != "" {
		pair, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return nil, fmt.Errorf("%w: parameters cert and key: %w", driver.ErrInvalid, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Fresh is c, which Config made, for one connection more: with what the files hold now.
// Certificates are renewed while a program runs, and a driver that connects anew with those it read
// at first would lose its locks for ever. Where the files cannot be read, since they belong to root
// alone, say, or one of a pair is written already and the other not, it is c as it is: the server
// decides.
func (t Params) Fresh(c *tls.Config) *tls.Config {
	if c == nil || t.ca == "" && t.cert == "" {
		return c
	}
	now, err := t.Config(true)
	if err != nil {
		return c
	}
	fresh := c.Clone()
	if t.ca != "" {
		fresh.RootCAs = now.RootCAs
	}
	if t.cert != "" {
		fresh.Certificates = now.Certificates
	}
	return fresh
}
