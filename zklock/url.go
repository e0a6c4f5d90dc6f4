package zklock

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/tlsparams"
)

func init() {
	driver.Register("zookeeper", openURL)
}

// Open connects to the store that a URL names; docs/backends/zookeeper.md has its parameters. ctx
// bounds the connecting only. It is for programs that want the backend itself: hasp.Open makes a
// client, and takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "zookeeper")
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
		Strategy:       driver.OneOf(p, "strategy", StrategyQueue, StrategyNode),
		Dialect:        driver.OneOf(p, "dialect", DialectCurator, DialectCuratorRW, DialectKazoo),
		PlainNames:     driver.OneOf(p, "names", "encoded", "plain") == "plain",
		ConnectTimeout: p.Duration("connect_timeout", defaultConnectTimeout),
	}
	if p.Has("acl") {
		o.ACL = driver.OneOf(p, "acl", ACLCreatorOnly, ACLCreatorReadable, ACLWorldOpen)
	}
	secure := tlsparams.Take(p)
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
	var err error
	o.secure = secure
	if o.TLS, err = secure.Config(false); err != nil {
		return nil, err
	}
	return o, nil
}
