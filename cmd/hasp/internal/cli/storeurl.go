package cli

import (
	"errors"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/secrets"
	"github.com/hasplock/hasp/driver"
	"github.com/spf13/pflag"
)

// storeURL is the value of --store. It is parsed here once; the driver parses the text again, and
// says what is wrong with it.
type storeURL struct {
	text    string
	parsed  *url.URL // nil: not a URL
	assumed bool     // the user has named no store
	require yesNo    // and that is refused
}

func (s *storeURL) add(fs *pflag.FlagSet) {
	fs.Var(s, "store", "the store's `URL` (default: this user's file store)")
	fs.Var(&s.require, "require-store", "refuse this user's file store where no store is named")
	fs.Lookup("require-store").NoOptDefVal = "yes"
}

func (s *storeURL) String() string { return s.text }
func (s *storeURL) Type() string   { return "URL" }

// Set takes any text: only the driver can refuse it without a word of what may be a secret.
func (s *storeURL) Set(text string) error {
	s.text = text
	s.parsed, _ = driver.SplitURL(text)
	return nil
}

func (s *storeURL) scheme() string {
	if s.parsed == nil {
		return ""
	}
	return s.parsed.Scheme
}

// public is the URL without user name, password, and parameters that are
// called like secrets. What is left still names the same locks, so that a nested hasp
// fails for lack of credentials rather than lock somewhere else.
func (s *storeURL) public() string {
	if s.parsed == nil { // not a store that could have been opened
		return ""
	}
	u := *s.parsed
	u.User = nil
	u.RawQuery = strings.Join(slices.DeleteFunc(strings.Split(u.RawQuery, "&"), hasSecret), "&")
	return u.String()
}

// hasSecret reports whether a parameter is called like a secret, or has one behind a ';', which
// drivers may take for '&' and url.Values drops together with what stands around it.
func hasSecret(parameter string) bool {
	return slices.ContainsFunc(strings.Split(parameter, ";"), func(part string) bool {
		key, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(key); err == nil {
			key = plain
		}
		return secrets.Parameter(key)
	})
}

// chooseStore has a verb without a store use this user's. It refuses a store that is named but
// empty: otherwise a variable that a script has not set (--store "$LOCKS") would silently lock on
// this machine alone.
func (s *settings) chooseStore(fs *pflag.FlagSet) error {
	f := fs.Lookup("store")
	switch {
	case f == nil:
		return nil
	case f.Value.String() != "":
		return f.Value.(*storeURL).checkScheme()
	case f.Changed:
		return exit.Misconfigured("--store is empty; name a store, or leave the flag out for this user's file store")
	case slices.Contains(s.environ(), storeVariable+"="):
		return exit.Misconfigured("%s is set and empty; name a store, or unset it for this user's file store", storeVariable)
	}
	if f.Value.(*storeURL).require {
		return exit.Misconfigured("no store is named, and require-store is set; name one with --store, HASP_STORE or a configuration file")
	}
	dir, err := defaultDir(runtime.GOOS, os.Geteuid(), s.getenv, homeDir)
	if err != nil {
		return exit.Misconfigured("%w; name a store with --store, HASP_STORE or a configuration file", err)
	}
	f.Value.(*storeURL).assumed = true
	return f.Value.Set((&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String())
}

// defaultDir is where locks are without any set-up.
//
// Root's does not depend on the environment: cron, a service and a shell opened by sudo have
// different ones, and each would silently lock in a separate directory. Other users have at least
// HOME in common, and where that is not set (some crons and services) the account's entry says the
// same.
func defaultDir(goos string, uid int, getenv func(string) string, home func() (string, error)) (string, error) {
	if uid == 0 && goos != "windows" {
		return "/var/lib/hasp", nil
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) { // the standard has others ignored
		return filepath.Join(dir, "hasp"), nil
	}
	dir := getenv("HOME")
	if !filepath.IsAbs(dir) {
		var err error
		if dir, err = home(); err != nil || !filepath.IsAbs(dir) {
			return "", errors.New("there is no default store: HOME is not set, and the account has no home directory")
		}
	}
	return filepath.Join(dir, ".local", "state", "hasp"), nil
}

// otherDir is the default directory of this user's processes that have no XDG_STATE_HOME, such as
// cron's, if it is another than that of this process and there are locks in it; else "".
func otherDir(goos string, uid int, getenv func(string) string, home func() (string, error)) string {
	own, err := defaultDir(goos, uid, getenv, home)
	if err != nil {
		return ""
	}
	plain := func(name string) string {
		if name == "XDG_STATE_HOME" {
			return ""
		}
		return getenv(name)
	}
	other, err := defaultDir(goos, uid, plain, home)
	if info, serr := os.Stat(other); err != nil || serr != nil || !info.IsDir() || other == own {
		return ""
	}
	return other
}

func homeDir() (string, error) {
	u, err := user.Current()
	if err != nil {
		return "", err
	}
	return u.HomeDir, nil
}
