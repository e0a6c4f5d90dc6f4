package cli

import (
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// hint adds to the error of opening a store what a user of the command can do about it.
func (a *app) hint(f *storeFlags, err error) error {
	if a.withheld(f) && errors.Is(err, driver.ErrRefused) {
		return fmt.Errorf("%w; this hasp runs under another, which keeps the store's credentials from its command: add --pass-credentials to the outer one", err)
	}
	if f.store.assumed && fail(err).code == exitConfig {
		return fmt.Errorf("%w; this is the default store of this user: set HASP_STORE (or --store, or store in a configuration file) to one that can be used, file:///some/directory say", err)
	}
	return err
}

// nested reports whether an outer hasp run has told this one of its lock, or of those that -l has named.
func (a *app) nested() bool {
	return a.getenv("HASP_HOLDER") != "" || a.getenv("HASP_HOLDER_1") != ""
}

// withheld reports whether the store's URL comes from an outer hasp run, without credentials: it sets
// HASP_HOLDER and HASP_STORE together.
func (a *app) withheld(f *storeFlags) bool {
	return a.nested() && f.store.text == a.getenv(storeVariable) &&
		f.store.parsed != nil && f.store.parsed.User == nil
}
