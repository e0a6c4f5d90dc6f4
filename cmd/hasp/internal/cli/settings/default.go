package settings

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
)

// defaultDir is where locks are without any set-up.
//
// Root's does not depend on the environment: cron, a service and a shell opened by sudo have
// different ones, and each would silently lock in a separate directory. Other users have at least
// HOME in common, and where that is not set (some crons and services) the account's entry says the
// same.
func defaultDir(goos string, uid int, getenv func(string) string, account func() string) (string, error) {
	if uid == 0 && goos != "windows" {
		return "/var/lib/hasp", nil
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) { // the standard has others ignored
		return filepath.Join(dir, "hasp"), nil
	}
	if home := home(goos, uid, getenv, account); home != "" {
		return filepath.Join(home, ".local", "state", "hasp"), nil
	}
	return "", errors.New("there is no default store: HOME is not set, and the account has no home directory")
}

// Elsewhere is the default directory of this user's processes that have no XDG_STATE_HOME, such as
// cron's, if it is another than that of this process and there are locks in it; else "".
func (s *Settings) Elsewhere() string {
	return otherDir(runtime.GOOS, os.Geteuid(), s.Getenv, account)
}

func otherDir(goos string, uid int, getenv func(string) string, account func() string) string {
	own, err := defaultDir(goos, uid, getenv, account)
	if err != nil {
		return ""
	}
	plain := func(name string) string {
		if name == "XDG_STATE_HOME" {
			return ""
		}
		return getenv(name)
	}
	other, err := defaultDir(goos, uid, plain, account)
	if info, serr := os.Stat(other); err != nil || serr != nil || !info.IsDir() || other == own {
		return ""
	}
	return other
}

// home is a user's home directory; "" if there is none. It is that of the account where HOME is not
// set, as with some crons and services, and for root always: a sudo may keep another user's HOME.
func home(goos string, uid int, getenv func(string) string, account func() string) string {
	dir := getenv("HOME")
	if uid == 0 && goos != "windows" || !filepath.IsAbs(dir) {
		dir = account()
	}
	if !filepath.IsAbs(dir) {
		return ""
	}
	return dir
}

// account is the home directory in the entry of this process's account.
func account() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.HomeDir
}
