package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/storeurl"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/pflag"
)

// SystemFile is the file with the settings of all users; a variable for tests.
var SystemFile = "/etc/hasp/config"

// longestFile bounds what is read of a file that cannot be a configuration.
const longestFile = 64 << 10

// File is a configuration file. One that is not there has no settings.
type File struct {
	Path  string `json:"path"`
	State string `json:"state"` // read, absent, not readable

	settings []Setting // with their credentials
}

const (
	fileRead       = "read"
	fileAbsent     = "absent"
	fileUnreadable = "not readable"
)

func (f *File) at(line int) string { return fmt.Sprintf("%s:%d", f.Path, line) }

// Configured reports whether there is a configuration file: its author knows where locks are.
func (s *Settings) Configured() bool {
	return slices.ContainsFunc(s.files, func(f *File) bool { return f.State != fileAbsent })
}

// inFile is a setting in the files that were read, and where it stands.
func (s *Settings) inFile(key string) (value, from string) {
	for _, f := range s.files {
		for _, line := range f.settings {
			if line.Key == key {
				return line.Value, line.From
			}
		}
	}
	return "", ""
}

// fromFiles sets what neither the command line nor the environment has set.
func (s *Settings) fromFiles(fs *pflag.FlagSet, store *pflag.Flag) error {
	if err := s.readFiles(fs.Lookup("config")); err != nil {
		return err
	}
	for _, f := range s.files {
		if err := s.fromFile(fs, f); err != nil {
			return err
		}
	}
	for _, f := range s.files {
		// Its store may be the one that all others lock in.
		if f.State == fileUnreadable && store.Value.String() == "" && !store.Changed && !s.emptyStore() {
			return exit.Misconfigured("%s may not be read, and no store is named; name one with --store or HASP_STORE", f.Path)
		}
	}
	return nil
}

// fromFile sets what nothing before has set. What stands beside something stronger that excludes it
// is silent (see conflicting).
func (s *Settings) fromFile(fs *pflag.FlagSet, c *File) error {
	silent := silenced(fs)
	for _, line := range c.settings {
		f := fs.Lookup(line.Key)
		set := func(value string) error { return fs.Set(line.Key, value) }
		switch {
		case f == nil: // another verb's; a bad value is an error all the same
			f = s.known[line.Key]
			set = f.Value.Set
		case line.Key == "store":
			if s.emptyStore() || silent("store") && !s.restores(f, line.Value) {
				continue
			}
			s.storeFrom = line.From
		case silent(line.Key):
			continue
		}
		if err := badValue(f, line.Value, set(line.Value)); err != nil {
			return exit.Misconfigured("%s: %s: %w", line.From, line.Key, err)
		}
	}
	return nil
}

// restores reports whether a file's store is the one that an outer hasp run has passed on without
// its credentials. The nested hasp reads the same file, and needs them.
func (s *Settings) restores(store *pflag.Flag, value string) bool {
	file := &storeurl.URL{}
	_ = file.Set(value) // it takes any text
	return s.Withheld(store.Value.(*storeurl.URL)) && store.Value.String() == file.Public()
}

// Paths are the files that there may be for this process: its user's, and the system's.
func Paths() []string {
	return paths(runtime.GOOS, os.Getuid(), os.Geteuid(), os.Getenv, account)
}

// paths has the file that wins first.
//
// Root's own does not depend on HOME, for the reason given at defaultDir: a sudo that
// keeps HOME must not have root follow the settings of the user who called it. XDG_CONFIG_HOME is
// meant, sudo drops it by default, and a file of another user is refused in any case. A program
// that runs with the rights of another user than the one who started it (setuid) takes neither
// user's settings.
func paths(goos string, uid, euid int, getenv func(string) string, account func() string) (all []string) {
	dir := getenv("XDG_CONFIG_HOME")
	if at := home(goos, uid, getenv, account); !filepath.IsAbs(dir) && at != "" {
		dir = filepath.Join(at, ".config")
	}
	if uid == euid && filepath.IsAbs(dir) {
		all = append(all, filepath.Join(dir, "hasp", "config"))
	}
	if goos != "windows" {
		all = append(all, SystemFile)
	}
	return all
}

// readFiles reads the user's and the system's file, or the one that a flag names in place of them.
func (s *Settings) readFiles(named *pflag.Flag) error {
	var paths []string
	if s.files = []*File{}; named != nil && named.Changed {
		paths = []string{named.Value.String()}
	} else if s.Paths != nil {
		paths = s.Paths()
	}
	for _, path := range paths {
		f, err := s.readFile(path)
		if err != nil {
			return err
		}
		if named != nil && named.Changed && f.State != fileRead {
			return exit.Misconfigured("--config: %s is %s", view.Quote(path), f.State)
		}
		s.files = append(s.files, f)
	}
	return nil
}

// readFile reads and checks a file; its values are checked when they are set.
//
// A file that this user may not read is no error by itself: root's may hold a password, and a user
// who names a store needs nothing of it. fromFiles refuses to go on without a store.
func (s *Settings) readFile(path string) (*File, error) {
	c := &File{Path: path, State: fileAbsent}
	// Without O_NONBLOCK a FIFO would be waited for. The checks are of the open file: the name may
	// mean another one a moment later.
	f, err := os.OpenFile(path, os.O_RDONLY|nonBlocking, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return c, nil
	case errors.Is(err, fs.ErrPermission):
		c.State = fileUnreadable
		return c, nil
	case err != nil:
		return nil, exit.Misconfigured("configuration: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, exit.Misconfigured("configuration: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, exit.Misconfigured("%s is not a file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, longestFile+1))
	switch {
	case err != nil:
		return nil, exit.Misconfigured("configuration: %w", err)
	case len(text) > longestFile:
		return nil, exit.Misconfigured("%s has more than %d bytes: it is no configuration", path, longestFile)
	}
	c.State = fileRead
	if err := s.parse(c, text); err != nil {
		return nil, err
	}
	return c, trustFile(c, info)
}

// parse takes lines of the form key = value. A comment is a whole line: a value may
// contain '#'.
func (s *Settings) parse(c *File, text []byte) error {
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return exit.Misconfigured("%s is not UTF-8 text", c.Path)
	}
	seen := map[string]int{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, found := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !found:
			return exit.Misconfigured("%s: no '=' in the line; write key = value", c.at(n))
		case s.known[key] == nil:
			return exit.Misconfigured("%s: unknown key %s; the keys are the names of flags that have a variable, as in wait = 30s", c.at(n), view.Quote(key))
		case value == "":
			return exit.Misconfigured("%s: %s has no value", c.at(n), key)
		case seen[key] > 0:
			return exit.Misconfigured("%s: %s has a value in line %d already", c.at(n), key, seen[key])
		}
		seen[key] = n
		c.settings = append(c.settings, Setting{key, value, c.at(n)})
	}
	return nil
}
