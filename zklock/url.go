package zklock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/hasplock/hasp/driver"
)

func init() {
	driver.Register("zookeeper", openURL)
}

// openURL connects to
//
//	zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/ROOT][?parameters]
//
// and asks one server for a sign of life, so that a wrong address or certificate is told
// now.
func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	o, err := parse(u)
	if err != nil {
		return nil, err
	}
	b, err := open(strings.Split(u.Host, ","), o)
	if err != nil {
		return nil, err
	}
	if err := b.greet(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// parse checks a URL without any I/O but reading the files it names.
func parse(u *url.URL) (*Options, error) {
	p := driver.NewParams(u.Query())
	o := &Options{
		Root:           u.Path,
		Strategy:       Strategy(p.OneOf("strategy", string(Queue), string(Node))),
		Dialect:        Dialect(p.OneOf("dialect", string(Curator), string(CuratorRW), string(Kazoo))),
		PlainNames:     p.OneOf("names", "encoded", "plain") == "plain",
		ConnectTimeout: p.Duration("connect_timeout", defaultConnectTimeout),
	}
	if p.Has("acl") {
		o.ACL = ACL(p.OneOf("acl", string(CreatorOnly), string(CreatorReadable), string(WorldOpen)))
	}
	files := tlsFiles{ca: p.String("ca", ""), cert: p.String("cert", ""), key: p.String("key", ""), name: p.String("servername", "")}
	secure := p.Bool("tls", files != tlsFiles{})
	if err := p.Err(); err != nil {
		return nil, err
	}
	if u.Opaque != "" {
		return nil, fmt.Errorf("%w: write zookeeper://HOST", driver.ErrInvalid)
	}
	o.User = u.User.Username()
	o.Password, _ = u.User.Password()
	if (o.User == "") != (o.Password == "") {
		return nil, fmt.Errorf("%w: a zookeeper URL has both a user and a password, or neither", driver.ErrInvalid)
	}
	if !secure && files != (tlsFiles{}) {
		return nil, fmt.Errorf("%w: ca, cert, key and servername need tls=true", driver.ErrInvalid)
	}
	if secure {
		var err error
		if o.TLS, err = files.config(); err != nil {
			return nil, err
		}
	}
	return o, nil
}

type tlsFiles struct{ ca, cert, key, name string }

func (f tlsFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.name}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("%w: parameter ca: %w", driver.ErrInvalid, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: parameter ca: no PEM certificate in the file", driver.ErrInvalid)
		}
	}
	if (f.cert == "") != (f.key == "") {
		return nil, fmt.Errorf("%w: parameters cert and key belong together", driver.ErrInvalid)
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("%w: parameters cert and key: %w", driver.ErrInvalid, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
