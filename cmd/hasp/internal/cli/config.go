package cli

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

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/driver"
)

// systemConfig is the file with the settings of all users; a variable for tests.
var systemConfig = "/etc/hasp/config"

// longestConfig bounds what is read of a file that cannot be a configuration.
const longestConfig = 64 << 10

// setting is a line of a configuration file.
type setting struct {
	key, value string
	line       int
}

// configFile is one of the two files. A file that is not there has no settings.
type configFile struct {
	path     string
	state    string // for hasp config: "read", "absent", "not readable"
	settings []setting
}

const (
	fileRead       = "read"
	fileAbsent     = "absent"
	fileUnreadable = "not readable"
)

func (f *configFile) at(line int) string { return fmt.Sprintf("%s:%d", f.path, line) }

// configPaths are the files that there may be, the one that wins first.
//
// Root's own does not depend on HOME, for the reason given at defaultDir: a sudo that keeps HOME
// must not have root follow the settings of the user who called it. XDG_CONFIG_HOME is meant, sudo
// drops it by default, and a file of another user is refused in any case. A program that runs with
// the rights of another user than the one who started it (setuid) takes neither user's settings.
func configPaths(goos string, uid, euid int, getenv func(string) string, home func() (string, error)) []string {
	var paths []string
	if uid == euid {
		if dir := configDir(goos, uid, getenv, home); dir != "" {
			paths = append(paths, filepath.Join(dir, "hasp", "config"))
		}
	}
	if goos != "windows" {
		paths = append(paths, systemConfig)
	}
	return paths
}

func configDir(goos string, uid int, getenv func(string) string, home func() (string, error)) string {
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	dir := getenv("HOME")
	if uid == 0 && goos != "windows" || !filepath.IsAbs(dir) { // some crons and services have no HOME
		var err error
		if dir, err = home(); err != nil || !filepath.IsAbs(dir) {
			return ""
		}
	}
	return filepath.Join(dir, ".config")
}

// ownConfigPaths are this process's.
func ownConfigPaths() []string {
	return configPaths(runtime.GOOS, os.Getuid(), os.Geteuid(), os.Getenv, homeDir)
}

// configFiles reads the files, once.
func (s *settings) configFiles() ([]*configFile, error) {
	if s.configs != nil || s.configPaths == nil {
		return s.configs, nil
	}
	for _, path := range s.configPaths() {
		f, err := s.readConfig(path)
		if err != nil {
			return nil, err
		}
		s.configs = append(s.configs, f)
	}
	return s.configs, nil
}

// readConfig reads and checks a file; its values are checked when they are set.
//
// A file that this user may not read is no error by itself: root's may hold a password, and a user
// who names a store needs nothing of it. configure refuses to go on without a store.
func (s *settings) readConfig(path string) (*configFile, error) {
	c := &configFile{path: path, state: fileAbsent}
	// Without O_NONBLOCK a FIFO would be waited for. The checks are of the open file: the name may
	// mean another one a moment later.
	f, err := os.OpenFile(path, os.O_RDONLY|nonBlocking, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return c, nil
	case errors.Is(err, fs.ErrPermission):
		c.state = fileUnreadable
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
	text, err := io.ReadAll(io.LimitReader(f, longestConfig+1))
	switch {
	case err != nil:
		return nil, exit.Misconfigured("configuration: %w", err)
	case len(text) > longestConfig:
		return nil, exit.Misconfigured("%s has more than %d bytes: it is no configuration", path, longestConfig)
	}
	c.state = fileRead
	if err := s.parseConfig(c, text); err != nil {
		return nil, err
	}
	return c, trustFile(c, info)
}

// parseConfig takes lines of the form key = value. A comment is a whole line: a value may
// contain '#'.
func (s *settings) parseConfig(c *configFile, text []byte) error {
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return exit.Misconfigured("%s is not UTF-8 text", c.path)
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
		c.settings = append(c.settings, setting{key, value, n})
	}
	return nil
}

// hasPassword reports whether a value may be one that others must not read. A text that is no URL
// is taken for one with a password if it could be. A URL of hasp serve has its token where others
// have a user's name.
func hasPassword(value string) bool {
	u, err := driver.SplitURL(value)
	if err != nil {
		return strings.Contains(value, "@")
	}
	if _, given := u.User.Password(); given || strings.HasPrefix(u.Scheme, "hasp+") && u.User.Username() != "" {
		return true
	}
	return slices.ContainsFunc(strings.FieldsFunc(u.RawQuery, func(r rune) bool { return r == '&' || r == ';' }), func(part string) bool {
		key, _, _ := strings.Cut(part, "=")
		return hasSecret(part) && !strings.HasSuffix(strings.ToLower(key), "file")
	})
}
