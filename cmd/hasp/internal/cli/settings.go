package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/spf13/pflag"
)

// settings are what variables and files set, beside the command line.
type settings struct {
	getenv      func(string) string
	environ     func() []string
	configPaths func() []string // nil: there are none

	variables map[string]bool        // of the flags of the verbs that were made
	known     map[string]*pflag.Flag // a flag of each of their names that can be set by variable or file
	configs   []*configFile
	storeFrom string // which of flag, variable and file has set the store, for hasp config
}

// configure sets the flags of a verb that the command line has not: from the environment, then from
// the user's file, then from the system's. The verbs that need no store read no file: hasp version
// says its version however broken the configuration is.
func (s *settings) configure(fs *pflag.FlagSet) error {
	store := fs.Lookup("store")
	s.storeFrom = "default"
	if store != nil && store.Changed {
		s.storeFrom = "--store"
	}
	if err := flagsFromEnv(fs, s.getenv); err != nil || store == nil {
		return err
	}
	if store.Changed && s.storeFrom == "default" {
		s.storeFrom = storeVariable
	}
	files, err := s.filesFor(fs)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := s.flagsFromFile(fs, f); err != nil {
			return err
		}
	}
	for _, f := range files {
		// Its store may be the one that all others lock in.
		if f.state == fileUnreadable && store.Value.String() == "" && !store.Changed && !s.emptyStore() {
			return exit.Misconfigured("%s may not be read, and no store is named; name one with --store or HASP_STORE", f.path)
		}
	}
	return nil
}

// configured reports whether there is a configuration file: its author knows where locks are.
func (s *settings) configured() bool {
	return slices.ContainsFunc(s.configs, func(f *configFile) bool { return f.state != fileAbsent })
}

// filesFor are the user's and the system's file, or the one that a flag names in place of them.
func (s *settings) filesFor(fs *pflag.FlagSet) ([]*configFile, error) {
	named := fs.Lookup("config")
	if named == nil || !named.Changed {
		return s.configFiles()
	}
	f, err := s.readConfig(named.Value.String())
	if err == nil && f.state != fileRead {
		err = exit.Misconfigured("--config: %s is %s", view.Quote(f.path), f.state)
	}
	return []*configFile{f}, err
}

// emptyStore reports whether the store in the environment is set and empty, which is refused and
// not filled from a file: see chooseStore.
func (s *settings) emptyStore() bool { return slices.Contains(s.environ(), storeVariable+"=") }

// flagsFromFile sets what neither the command line nor the environment nor a file before has set.
// What stands beside something stronger that excludes it is silent (see conflicting).
func (s *settings) flagsFromFile(fs *pflag.FlagSet, c *configFile) error {
	given := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	for _, line := range c.settings {
		f := fs.Lookup(line.key)
		set := func(value string) error { return fs.Set(line.key, value) }
		switch {
		case f == nil: // another verb's; a bad value is an error all the same
			f = s.known[line.key]
			set = f.Value.Set
		case line.key == "store":
			if s.emptyStore() || given["store"] && !s.restores(f, line.value) {
				continue
			}
			s.storeFrom = c.at(line.line)
		case given[line.key], slices.ContainsFunc(conflicting[line.key], func(r string) bool { return given[r] }):
			continue
		}
		if err := badValue(f, line.value, set(line.value)); err != nil {
			return exit.Misconfigured("%s: %w", c.at(line.line), err)
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
	return fmt.Errorf("%s: %s: %w", f.Name, view.Quote(value), err)
}

// restores reports whether a file's store is the one that an outer hasp run has passed on without
// its credentials. The nested hasp reads the same file, and needs them.
func (s *settings) restores(store *pflag.Flag, value string) bool {
	file := &storeURL{}
	_ = file.Set(value) // it takes any text
	return s.nested() && store.Value.String() == s.getenv(storeVariable) && store.Value.String() == file.public()
}
