package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
)

// configure sets the flags of a verb that the command line has not: from the environment, then from
// the user's file, then from the system's. The verbs that need no store read no file: hasp version
// says its version however broken the configuration is.
func (a *app) configure(fs *pflag.FlagSet) error {
	store := fs.Lookup("store")
	a.storeFrom = "default"
	if store != nil && store.Changed {
		a.storeFrom = "--store"
	}
	if err := flagsFromEnv(fs, a.getenv); err != nil || store == nil {
		return err
	}
	if store.Changed && a.storeFrom == "default" {
		a.storeFrom = storeVariable
	}
	files, err := a.filesFor(fs)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := a.flagsFromFile(fs, f); err != nil {
			return err
		}
	}
	for _, f := range files {
		// Its store may be the one that all others lock in.
		if f.state == fileUnreadable && store.Value.String() == "" && !store.Changed && !a.emptyStore() {
			return misconfigured("%s may not be read, and no store is named; name one with --store or HASP_STORE", f.path)
		}
	}
	return nil
}

// filesFor are the user's and the system's file, or the one that a flag names in place of them.
func (a *app) filesFor(fs *pflag.FlagSet) ([]*configFile, error) {
	named := fs.Lookup("config")
	if named == nil || !named.Changed {
		return a.configFiles()
	}
	f, err := a.readConfig(named.Value.String())
	if err == nil && f.state != fileRead {
		err = misconfigured("--config: %s is %s", quoteArg(f.path), f.state)
	}
	return []*configFile{f}, err
}

// emptyStore reports whether the store in the environment is set and empty, which is refused and
// not filled from a file: see chooseStore.
func (a *app) emptyStore() bool { return slices.Contains(a.environ(), storeVariable+"=") }

// flagsFromFile sets what neither the command line nor the environment nor a file before has set.
// What stands beside something stronger that excludes it is silent (see conflicting).
func (a *app) flagsFromFile(fs *pflag.FlagSet, c *configFile) error {
	given := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	for _, s := range c.settings {
		f := fs.Lookup(s.key)
		set := func(value string) error { return fs.Set(s.key, value) }
		switch {
		case f == nil: // another verb's; a bad value is an error all the same
			f = a.known[s.key]
			set = f.Value.Set
		case s.key == "store":
			if a.emptyStore() || given["store"] && !a.restores(f, s.value) {
				continue
			}
			a.storeFrom = c.at(s.line)
		case given[s.key], slices.ContainsFunc(conflicting[s.key], func(r string) bool { return given[r] }):
			continue
		}
		if err := badValue(f, s.value, set(s.value)); err != nil {
			return misconfigured("%s: %w", c.at(s.line), err)
		}
	}
	return nil
}

// badValue says what is wrong with a value that could not be set. pflag's own words quote it.
func badValue(f *pflag.Flag, value string, err error) error {
	var invalid *pflag.InvalidValueError
	switch {
	case err == nil:
		return nil
	case f.Value.Type() == "bool":
		err = errors.New("must be true or false")
	case errors.As(err, &invalid):
		err = invalid.Unwrap()
	}
	return fmt.Errorf("%s: %s: %w", f.Name, quoteArg(value), err)
}

// restores reports whether a file's store is the one that an outer hasp run has passed on without
// its credentials. The nested hasp reads the same file, and needs them.
func (a *app) restores(store *pflag.Flag, value string) bool {
	file := &storeURL{}
	_ = file.Set(value) // it takes any text
	return a.nested() && store.Value.String() == a.getenv(storeVariable) && store.Value.String() == file.public()
}
