package driver

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"sync"
)

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
