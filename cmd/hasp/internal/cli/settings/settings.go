// Package settings has what variables and files set beside the command line. A variable is called
// as its flag is, HASP_WAIT for --wait, and so is a line of a file: wait = 30s. The command line
// wins, then the environment, then the user's file, then the system's.
package settings

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/storeurl"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/pflag"
)

// Settings are those of one run of the command.
type Settings struct {
	Getenv  func(string) string // as in package os, and so Environ
	Environ func() []string
	Paths   func() []string // of the files, the one that wins first; nil: there are none

	variables map[string]bool        // of the flags that have one
	known     map[string]*pflag.Flag // a flag of each of their names
	files     []*File
	storeFrom string
}

// Setting is one that is in force.
type Setting struct {
	Key   string `json:"key"`   // the flag's name
	Value string `json:"value"` // a URL without its credentials
	From  string `json:"from"`  // a flag, a variable, FILE:LINE, or "default"
}

// Note notes the flags of a verb that variables and files can set, and adds the variables to the
// verb's help. Each start of hasp does this for all verbs: so it looks at them in the order in
// which they were made, and does not sort them.
func (s *Settings) Note(fs *pflag.FlagSet) {
	if s.variables == nil {
		s.variables, s.known = map[string]bool{}, map[string]*pflag.Flag{}
	}
	fs.SortFlags = false
	defer func() { fs.SortFlags = true }()
	fs.VisitAll(func(f *pflag.Flag) {
		if !settable(f) {
			return
		}
		s.variables[variableOf(f.Name)] = true
		f.Usage += " [" + variableOf(f.Name) + "]"
		if s.known[f.Name] == nil {
			s.known[f.Name] = f
		}
	})
}

// Variables are those of all flags that were noted.
func (s *Settings) Variables() []string { return slices.Collect(maps.Keys(s.variables)) }

// Apply sets the flags of a verb that the command line has not, and chooses its store. The verbs
// that need no store read no file, and refuse no variable: hasp version says its version however
// broken the configuration is.
func (s *Settings) Apply(fs *pflag.FlagSet) error {
	store := fs.Lookup("store")
	if store == nil {
		return s.fromEnvironment(fs)
	}
	if err := s.refuseVariables(); err != nil {
		return err
	}
	s.storeFrom = "default"
	if store.Changed {
		s.storeFrom = "--store"
	}
	if err := s.fromEnvironment(fs); err != nil {
		return err
	}
	if store.Changed && s.storeFrom == "default" {
		s.storeFrom = storeurl.Variable
	}
	if err := s.fromFiles(fs, store); err != nil {
		return err
	}
	return s.choose(store)
}

// choose has a verb without a store use this user's. It refuses a store that is named but empty:
// otherwise a variable that a script has not set (--store "$LOCKS") would silently lock on this
// machine alone.
func (s *Settings) choose(store *pflag.Flag) error {
	url := store.Value.(*storeurl.URL)
	switch {
	case url.String() == storeurl.Git:
		return url.UseGit()
	case url.String() != "":
		return url.Check()
	case store.Changed:
		return exit.Misconfigured("--store is empty; name a store, or leave the flag out for this user's file store")
	case s.emptyStore():
		return exit.Misconfigured("%s is set and empty; name a store, or unset it for this user's file store", storeurl.Variable)
	}
	dir, err := defaultDir(runtime.GOOS, os.Geteuid(), s.Getenv, account)
	if err != nil {
		return exit.Misconfigured("%w; name a store with --store, HASP_STORE or a configuration file", err)
	}
	return url.UseOwn(dir)
}

// emptyStore reports whether the store in the environment is set and empty, which is refused and
// not filled from a file: see choose.
func (s *Settings) emptyStore() bool { return slices.Contains(s.Environ(), storeurl.Variable+"=") }

// InForce are the files that Apply has looked for, the one that wins first, and the settings that
// all verbs would find, the store's first.
func (s *Settings) InForce(store *storeurl.URL) ([]*File, []Setting, error) {
	all := []Setting{{"store", store.Shown(), s.storeFrom}}
	for _, key := range slices.Sorted(maps.Keys(s.known)) {
		if key == "store" {
			continue
		}
		value, from := s.Getenv(variableOf(key)), variableOf(key)
		if value != "" {
			if err := badValue(s.known[key], value, s.known[key].Value.Set(value)); err != nil {
				return nil, nil, exit.Usage("%s in the environment: %w", from, err)
			}
		} else if value, from = s.inFile(key); value == "" {
			continue
		}
		all = append(all, Setting{key, view.Quietly(value), from})
	}
	return s.files, all, nil
}

// Withheld reports whether the store comes from an outer hasp run, without credentials: it sets
// HASP_HOLDER (with -l HASP_HOLDER_1) and HASP_STORE together.
func (s *Settings) Withheld(store *storeurl.URL) bool {
	nested := s.Getenv("HASP_HOLDER") != "" || s.Getenv("HASP_HOLDER_1") != ""
	return nested && store.String() == s.Getenv(storeurl.Variable) && store.String() == store.Public()
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
	return fmt.Errorf("%s: %w", view.Quote(value), err)
}
