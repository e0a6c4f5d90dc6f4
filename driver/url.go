package driver

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Open connects to the store that a URL names, with the driver of its scheme. schemes are those
// that are accepted, all registered ones if there are none. It is for drivers' own Open
// functions; a program calls those, or hasp.Open, which takes the core's parameters too.
//
// Errors never show the URL or a part of it.
func Open(ctx context.Context, storeURL string, schemes ...string) (Backend, error) {
	if ctx == nil {
		return nil, fmt.Errorf("%w: the context is nil", ErrInvalid)
	}
	u, err := ParseURL(storeURL, schemes...)
	if err != nil {
		return nil, err
	}
	return Lookup(u.Scheme)(ctx, u)
}

// ParseURL parses the URL of a store and quotes nothing of it in its errors: those of url.Parse
// do, and a password with an unescaped '#', '?' or '/' ends up in any of the later parts. schemes
// are those that are accepted, all registered ones if there are none.
func ParseURL(storeURL string, schemes ...string) (*url.URL, error) {
	if len(schemes) == 0 {
		schemes = Schemes()
	}
	scheme, rest, found := strings.Cut(storeURL, ":")
	if !found || !slices.Contains(schemes, scheme) || Lookup(scheme) == nil {
		return nil, fmt.Errorf("%w: the store must be a URL that begins with one of %s (is the driver's package imported?)", ErrInvalid, listed(schemes))
	}
	u, err := url.Parse(storeURL)
	if err != nil {
		return nil, fmt.Errorf("%w: malformed %s URL; is everything unusual in user name and password percent-encoded, and the port a number?", ErrInvalid, scheme)
	}
	if u.Fragment != "" || u.RawFragment != "" || strings.HasSuffix(rest, "#") {
		return nil, fmt.Errorf("%w: '#' has no meaning in a %s URL; in a password write %%23", ErrInvalid, scheme)
	}
	if strings.ContainsAny(u.RawQuery, "@") {
		return nil, fmt.Errorf("%w: '@' after '?' in a %s URL; in a password write %%3F for '?', in a parameter %%40 for '@'", ErrInvalid, scheme)
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return nil, fmt.Errorf("%w: malformed parameters in the %s URL; percent-encode them", ErrInvalid, scheme)
	}
	return u, nil
}

func listed(schemes []string) string {
	if len(schemes) == 0 {
		return "(no driver is imported)"
	}
	return strings.Join(schemes, ": ") + ":"
}
