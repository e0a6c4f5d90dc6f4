package hasp

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/hasplock/hasp/driver"
)

// Open connects to the store that a URL names and returns a Client for it. The package
// of the store's driver must be imported, for its scheme to be known:
//
//	import _ "github.com/hasplock/hasp/filelock" // file:///var/lib/hasp
//
// The parameters ttl and guard (durations such as "10s") are the core's and come before
// the options given here; all others are the driver's, see its package. A parameter that
// nobody knows is an error. ctx bounds the connecting only.
//
// Errors never show the URL: whatever its user name, password or query may be, and
// however malformed it is.
func Open(ctx context.Context, storeURL string, opts ...Option) (*Client, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	u, err := parseURL(storeURL)
	if err != nil {
		return nil, err
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
		return nil, fmt.Errorf("hasp: open %s store: %w", u.Scheme, err)
	}
	c, err := New(b, opts...)
	if err != nil {
		_ = b.Close() // the caller's mistake is the news, not how the unused store closed
		return nil, err
	}
	return c, nil
}

// parseURL parses without ever quoting its input: url.Parse's own errors do, and a
// password with an unescaped '#', '?' or '/' ends up in any of the later parts.
func parseURL(s string) (*url.URL, error) {
	scheme, rest, found := strings.Cut(s, ":")
	if !found || driver.Lookup(scheme) == nil {
		return nil, fmt.Errorf("hasp: %w: the store must be a URL that begins with one of %s (is the driver's package imported?)",
			ErrInvalidOption, knownSchemes())
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("hasp: %w: malformed %s URL; is everything unusual in user name and password percent-encoded, and the port a number?",
			ErrInvalidOption, scheme)
	}
	if u.Fragment != "" || u.RawFragment != "" || strings.HasSuffix(rest, "#") {
		return nil, fmt.Errorf("hasp: %w: '#' has no meaning in a %s URL; in a password write %%23", ErrInvalidOption, scheme)
	}
	if strings.ContainsAny(u.RawQuery, "@") {
		return nil, fmt.Errorf("hasp: %w: '@' after '?' in a %s URL; in a password write %%3F for '?', in a parameter %%40 for '@'", ErrInvalidOption, scheme)
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return nil, fmt.Errorf("hasp: %w: malformed parameters in the %s URL; percent-encode them", ErrInvalidOption, scheme)
	}
	return u, nil
}

func knownSchemes() string {
	var names []string
	for _, s := range driver.Schemes() {
		names = append(names, s+":")
	}
	if names == nil {
		return "(no driver is imported)"
	}
	return strings.Join(names, " ")
}

// takeOwn removes the core's parameters from the query.
func takeOwn(u *url.URL) ([]Option, error) {
	q := u.Query()
	var opts []Option
	for key, option := range map[string]func(*driver.Params) Option{
		"ttl":   func(p *driver.Params) Option { return WithTTL(p.Duration("ttl", 0)) },
		"guard": func(p *driver.Params) Option { return WithGuard(p.Duration("guard", 0)) },
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
