package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
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
		return nil, fmt.Errorf("%w: the store must be a URL that begins with one of %s (is the driver's package imported? github.com/hasplock/hasp/redislock for redis:, say)",
			ErrInvalid, listed(schemes))
	}
	u, err := SplitURL(storeURL)
	if err != nil {
		return nil, err
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

// SplitURL is url.Parse for the URLs of stores. They may have several hosts, with commas between,
// and net/url takes a list of names but none of IPv6 addresses: so the hosts are cut out before,
// and stand in the URL's Host for [Hosts], without their percent-encoding. An error wraps
// ErrInvalid, and quotes nothing.
func SplitURL(storeURL string) (*url.URL, error) {
	// An '/' in a password, say, puts a part of it where a host's port is.
	malformed := func(what string) error {
		return fmt.Errorf("%w: malformed URL: %s; is everything unusual in user name and password percent-encoded?", ErrInvalid, what)
	}
	plain, hosts := storeURL, ""
	if scheme, after, found := strings.Cut(storeURL, "://"); found && !strings.ContainsAny(scheme, "/?#") {
		end := strings.IndexAny(after, "/?#")
		if end < 0 {
			end = len(after)
		}
		start := strings.LastIndexByte(after[:end], '@') + 1
		plain, hosts = scheme+"://"+after[:start]+after[end:], after[start:end]
	}
	u, err := url.Parse(plain)
	if err != nil {
		return nil, malformed("it cannot be taken apart")
	}
	if u.Host, err = url.PathUnescape(hosts); err != nil {
		return nil, malformed("a host has a '%' that begins no code")
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := splitHost(host); err != nil {
			return nil, malformed(err.Error())
		}
	}
	return u, nil
}

// Hosts splits the hosts of a store's URL, a list with commas between as in [url.URL]'s Host, into
// addresses for a dial: HOST:PORT, and [HOST]:PORT for IPv6. A host without a port has the one
// given here. All drivers split by this function, so that they take the same lists. An error wraps
// ErrInvalid, and quotes nothing.
func Hosts(list, port string) ([]string, error) {
	var all []string
	for h := range strings.SplitSeq(list, ",") {
		host, own, err := splitHost(h)
		switch {
		case err != nil:
		case host == "" && list == "":
			err = errors.New("the URL names no host")
		case host == "":
			err = errors.New("a host is missing beside a comma or before a port")
		case strings.Contains(host, "/"):
			err = errors.New("a host has a '/'")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if own == "" {
			own = port
		}
		all = append(all, net.JoinHostPort(host, own))
	}
	return all, nil
}

// splitHost takes one host apart; port is "" if there is none.
func splitHost(h string) (host, port string, err error) {
	if strings.ContainsFunc(h, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return "", "", errors.New("there is a blank in the list of hosts; write HOST:PORT,HOST:PORT")
	}
	host = h
	if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
		host, port = h[:i], h[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", "", errors.New("a port is a number from 1 to 65535")
		}
	}
	inner, opened := strings.CutPrefix(host, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if addr, err := netip.ParseAddr(inner); opened && closed && err == nil && addr.Is6() {
		return inner, port, nil
	}
	if strings.ContainsAny(host, ":[]") {
		return "", "", errors.New("an IPv6 address stands in brackets, and its port behind them: [::1]:6379")
	}
	return host, port, nil
}

func listed(schemes []string) string {
	if len(schemes) == 0 {
		return "(no driver is imported)"
	}
	return strings.Join(schemes, ": ") + ":"
}

// Opener makes a Backend from a URL. The core has taken its own parameters out of the
// query; the opener reads the rest through Params and refuses what is left over.
type Opener func(ctx context.Context, u *url.URL) (Backend, error)

// The URL schemes are the only global state in hasp; importing a driver package
// registers its own, as with database/sql.
var (
	schemesMu sync.RWMutex
	schemes   = map[string]Opener{}
)

// Register makes a URL scheme known to hasp.Open. It panics if the scheme is taken:
// two drivers that fight over a scheme are a mistake in the program.
func Register(scheme string, open Opener) {
	schemesMu.Lock()
	defer schemesMu.Unlock()
	if open == nil {
		panic("driver: Register with a nil Opener for " + scheme)
	}
	if _, taken := schemes[scheme]; taken {
		panic(fmt.Sprintf("driver: URL scheme %q registered twice", scheme))
	}
	schemes[scheme] = open
}

// Lookup returns the opener of a scheme, or nil.
func Lookup(scheme string) Opener {
	schemesMu.RLock()
	defer schemesMu.RUnlock()
	return schemes[scheme]
}

// Schemes lists the registered schemes, sorted.
func Schemes() []string {
	schemesMu.RLock()
	defer schemesMu.RUnlock()
	names := make([]string, 0, len(schemes))
	for s := range schemes {
		names = append(names, s)
	}
	slices.Sort(names)
	return names
}
