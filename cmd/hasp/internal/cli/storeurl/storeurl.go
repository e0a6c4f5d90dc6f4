// Package storeurl has the value of --store: its text with and without credentials, and what a
// mistyped one could mean.
package storeurl

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/secrets"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/repository"
	"github.com/spf13/pflag"
)

// Variable names the store in the environment.
const Variable = "HASP_STORE"

// Git, in place of a URL, is the store of the repository of the working directory.
const Git = "git"

// URL is the value of --store. It is parsed here once; the driver parses the text again, and says
// what is wrong with it.
type URL struct {
	Assumed bool // the user has named no store: it is this user's own
	OfGit   bool // it is that of the repository of the working directory
	text    string
	parsed  *url.URL // nil: not a URL
	require yesNo    // a store must be named
}

// Add adds --store and --require-store to a verb's flags.
func (s *URL) Add(fs *pflag.FlagSet) {
	fs.Var(s, "store", "the store's `URL`, or git: in the repository of this directory (default: this user's file store)")
	fs.Var(&s.require, "require-store", "refuse this user's file store where no store is named")
	fs.Lookup("require-store").NoOptDefVal = "yes"
}

// String is the URL as it was given, with its credentials: for the driver alone.
func (s *URL) String() string { return s.text }

// Type is the flag's, for its help.
func (s *URL) Type() string { return "URL" }

// Set takes any text: only the driver can refuse it without a word of what may be a secret.
func (s *URL) Set(text string) error {
	s.text = text
	s.parsed, _ = driver.SplitURL(text)
	return nil
}

// Scheme says which driver is meant; "" if the text is no URL.
func (s *URL) Scheme() string {
	if s.parsed == nil {
		return ""
	}
	return s.parsed.Scheme
}

// Public is the URL without user name, password, and parameters that are called like secrets. What
// is left still names the same locks, so that a nested hasp fails for lack of credentials rather
// than lock somewhere else.
func (s *URL) Public() string {
	if s.parsed == nil { // not a store that could have been opened
		return ""
	}
	u := *s.parsed
	u.User = nil
	u.RawQuery = strings.Join(slices.DeleteFunc(strings.Split(u.RawQuery, "&"), secrets.Parameter), "&")
	return u.String()
}

// Shown is the URL for people: without credentials, but with a word that there are some.
func (s *URL) Shown() string {
	if public := s.Public(); public != s.text {
		return view.Clean(public) + " (credentials not shown)"
	}
	return view.Clean(s.text)
}

// LookOnly is the store's URL for a look that makes nothing: no directory, and no tables.
func (s *URL) LookOnly() (string, bool) {
	switch s.Scheme() {
	case "":
		return "", false
	case "file":
		info, err := os.Stat(s.parsed.Path)
		return s.text, err == nil && info.IsDir()
	case "postgres", "postgresql", "mysql", "mariadb":
		u := *s.parsed
		q, err := url.ParseQuery(u.RawQuery)
		if err != nil {
			return "", false
		}
		q.Set("migrate", "false")
		u.RawQuery = q.Encode()
		return u.String(), true
	}
	return s.text, true
}

// UseOwn has a verb whose user has named no store use the one in this user's directory.
func (s *URL) UseOwn(dir string) error {
	if s.require {
		return exit.Misconfigured("no store is named, and require-store is set; name one with --store, HASP_STORE or a configuration file")
	}
	s.Assumed = true
	return s.Set((&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String())
}

// UseGit has a verb use the store of the repository. A command that it starts gets its URL, and so
// uses the same one in another directory.
func (s *URL) UseGit() error {
	at, err := repository.Store(".")
	if err != nil {
		return exit.Misconfigured("the store git: %w; go into a repository, or name a store by its URL", err)
	}
	s.OfGit = true
	return s.Set(at)
}

// yesNo is a bool that a file may call yes or no.
type yesNo bool

func (y *yesNo) Set(text string) error {
	yes, err := strconv.ParseBool(text)
	if text == "yes" || text == "no" {
		yes, err = text == "yes", nil
	}
	*y = yesNo(yes)
	return err
}

func (y *yesNo) String() string {
	if *y {
		return "yes"
	}
	return ""
}

func (*yesNo) Type() string { return "bool" }
