// Package tlsfiles reads what the URL of a store says about certificates, for drivers whose
// store speaks TLS. It is apart from package driver because crypto/tls makes a program a
// quarter larger, which those who lock in memory or in files should not pay for.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/hasplock/hasp/driver"
)

// Files are the files that a URL names, all in PEM. Nothing has been read of them yet: a
// URL is checked as a whole before any I/O.
type Files struct {
	prefix        string // of the parameters, for messages
	ca, cert, key string
}

// Named takes three parameters whose names begin with prefix: ca, the certificates that may
// vouch for a server (the system's, if absent); cert and key, what the client shows of
// itself.
func Named(p *driver.Params, prefix string) Files {
	return Files{
		prefix: prefix,
		ca:     p.String(prefix+"ca", ""), cert: p.String(prefix+"cert", ""), key: p.String(prefix+"key", ""),
	}
}

// Any reports whether the URL names a file: TLS is wanted then, or to switch it off is a
// mistake.
func (f Files) Any() bool { return f.ca != "" || f.cert != "" || f.key != "" }

// Config reads the files. It leaves ServerName to the caller, since some clients demand
// the name of the address, whatever is set. An error wraps driver.ErrInvalid; it names the
// parameter and shows nothing of what is in a file.
func (f Files) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if (f.cert == "") != (f.key == "") {
		return nil, fmt.Errorf("%w: parameters %[2]scert and %[2]skey belong together", driver.ErrInvalid, f.prefix)
	}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("%w: parameter %sca: %w", driver.ErrInvalid, f.prefix, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: parameter %sca: no PEM certificate in %s", driver.ErrInvalid, f.prefix, f.ca)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("%w: parameters %[2]scert and %[2]skey: %[3]w", driver.ErrInvalid, f.prefix, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
