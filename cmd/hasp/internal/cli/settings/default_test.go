//go:build unix

package settings

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDefaultDir(t *testing.T) {
	none := func() string { return "" }
	account := func() string { return "/home/ana" }
	for _, c := range []struct {
		goos string
		uid  int
		env  map[string]string
		home func() string
		want string
	}{
		{"linux", 1000, map[string]string{"HOME": "/h", "XDG_STATE_HOME": "/state"}, none, "/state/hasp"},
		{"linux", 1000, map[string]string{"HOME": "/h", "XDG_STATE_HOME": "relative"}, none, "/h/.local/state/hasp"},
		{"linux", 1000, map[string]string{"HOME": "/h"}, none, "/h/.local/state/hasp"},
		{"linux", 1000, nil, account, "/home/ana/.local/state/hasp"},
		{"linux", 1000, map[string]string{"HOME": "."}, account, "/home/ana/.local/state/hasp"},
		{"linux", 1000, nil, none, ""},
		{"linux", 0, map[string]string{"HOME": "/root", "XDG_STATE_HOME": "/state"}, none, "/var/lib/hasp"},
		{"linux", 0, nil, none, "/var/lib/hasp"},
	} {
		getenv := func(k string) string { return c.env[k] }
		if other := otherDir(c.goos, c.uid, getenv, c.home); other != "" {
			t.Errorf("uid %d, %v: another store %s, which does not exist", c.uid, c.env, other)
		}
		got, err := defaultDir(c.goos, c.uid, getenv, c.home)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("uid %d, %v: %q, %v; want %q", c.uid, c.env, got, err, c.want)
		}
	}
}

// A shell with XDG_STATE_HOME and a cron without it are two stores of one user, if the latter's is
// there.
func TestOtherDir(t *testing.T) {
	home := t.TempDir()
	locks := filepath.Join(home, ".local", "state", "hasp")
	env := map[string]string{"HOME": home, "XDG_STATE_HOME": t.TempDir()}
	other := func(uid int) string {
		return otherDir("linux", uid, func(k string) string { return env[k] }, func() string { return home })
	}
	if got := other(1000); got != "" {
		t.Errorf("%s, where nothing is locked", got)
	}
	if err := os.MkdirAll(locks, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := other(1000); got != locks {
		t.Errorf("%q, want %s", got, locks)
	}
	if got := other(0); got != "" {
		t.Errorf("root has %s as well", got)
	}
	delete(env, "XDG_STATE_HOME")
	if got := other(1000); got != "" {
		t.Errorf("%s beside itself", got)
	}
}
