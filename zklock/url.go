package zklock

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/tlsfiles"
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
	return b.complete(), nil
}

// parse checks a URL without any I/O but reading the files it names.
func parse(u *url.URL) (*Options, error) {
	p := driver.NewParams(u.Query())
	o := &Options{
		Root:           u.Path,
		Strategy:       Strategy(p.OneOf("strategy", string(StrategyQueue), string(StrategyNode))),
		Dialect:        Dialect(p.OneOf("dialect", string(DialectCurator), string(DialectCuratorRW), string(DialectKazoo))),
		PlainNames:     p.OneOf("names", "encoded", "plain") == "plain",
		ConnectTimeout: p.Duration("connect_timeout", defaultConnectTimeout),
	}
	if p.Has("acl") {
		o.ACL = ACL(p.OneOf("acl", string(ACLCreatorOnly), string(ACLCreatorReadable), string(ACLWorldOpen)))
	}
	files, serverName := tlsfiles.Named(p, ""), p.String("servername", "")
	given := files.Any() || serverName != ""
	secure := p.Bool("tls", given)
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
	if !secure && given {
		return nil, fmt.Errorf("%w: ca, cert, key and servername need tls=true", driver.ErrInvalid)
	}
	if secure {
		var err error
		if o.TLS, err = files.Config(); err != nil {
			return nil, err
		}
		o.TLS.ServerName = serverName
	}
	return o, nil
}
