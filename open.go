package hasp

import (
	"context"
	"fmt"
	"net/url"

	"github.com/hasplock/hasp/driver"
)

// Errors contain no message of url.Parse, which quotes the URL; FuzzOpenHidesPassword builds the
// URLs that users really get wrong. Rejected: redacting, which must first parse a malformed URL.

// Open connects to the store that a URL names and returns a Client for it. The package
// of the store's driver must be imported, for its scheme to be known:
//
//	import _ "github.com/hasplock/hasp/filelock" // file:///var/lib/hasp
//
// The parameters ttl and margin (durations such as "10s") are the core's and come before
// the options given here; all others are the driver's, see its package. A parameter that
// neither knows is an error. ctx bounds the connecting only.
//
// Errors never show the URL or a part of it, also if it is malformed.
func Open(ctx context.Context, storeURL string, opts ...Option) (*Client, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	u, err := driver.ParseURL(storeURL)
	if err != nil {
		return nil, fmt.Errorf("hasp: %w", err)
	}
	own, err := takeOwn(u)
	if err != nil {
		return nil, fmt.Errorf("hasp: open %s store: %w", u.Scheme, err)
	}
	opts = append(own, opts...)
	if _, err := newConfig(opts); err != nil { // before any I/O
		return nil, fmt.Errorf("hasp: open %s store: %w", u.Scheme, err)
	}
	b, err := driver.Lookup(u.Scheme)(ctx, u)
	if err != nil {
		if ctx.Err() == nil {
			err = ofStore(err)
		}
		return nil, fmt.Errorf("hasp: open %s store: %w", u.Scheme, err)
	}
	c, err := New(b, opts...)
	if err != nil {
		_ = b.Close() // the caller's mistake is the news, not how the unused store closed
		return nil, err
	}
	return c, nil
}

// takeOwn removes the core's parameters from the query.
func takeOwn(u *url.URL) ([]Option, error) {
	q := u.Query()
	var opts []Option
	for key, option := range map[string]func(*driver.Params) Option{
		"ttl":    func(p *driver.Params) Option { return WithTTL(p.Duration("ttl", 0)) },
		"margin": func(p *driver.Params) Option { return WithSafetyMargin(p.Duration("margin", 0)) },
	} {
		if !q.Has(key) {
			continue
		}
		p := driver.NewParams(url.Values{key: q[key]})
		opt := option(p)
		if err := p.Err(); err != nil {
			return nil, err
		}
		opts = append(opts, opt)
		q.Del(key)
	}
	u.RawQuery = q.Encode()
	return opts, nil
}
