//go:build unix

package settings

import (
	"slices"
	"testing"
)

// Root's file is that of its account, also where a sudo has kept another user's HOME; a program
// that runs with the rights of another user than its caller takes neither's.
func TestPaths(t *testing.T) {
	account := func() string { return "/home/ana" }
	none := func() string { return "" }
	const system = "/etc/hasp/config"
	for _, c := range []struct {
		goos      string
		uid, euid int
		env       map[string]string
		home      func() string
		want      []string
	}{
		{"linux", 1000, 1000, map[string]string{"HOME": "/h"}, none, []string{"/h/.config/hasp/config", system}},
		{"linux", 1000, 1000, map[string]string{"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, none, []string{"/x/hasp/config", system}},
		{"linux", 1000, 1000, map[string]string{"HOME": "/h", "XDG_CONFIG_HOME": "x"}, none, []string{"/h/.config/hasp/config", system}},
		{"linux", 1000, 1000, nil, account, []string{"/home/ana/.config/hasp/config", system}}, // cron
		{"linux", 1000, 1000, nil, none, []string{system}},
		{"linux", 0, 0, map[string]string{"HOME": "/home/bo"}, account, []string{"/home/ana/.config/hasp/config", system}}, // sudo
		{"linux", 0, 0, map[string]string{"XDG_CONFIG_HOME": "/x"}, account, []string{"/x/hasp/config", system}},
		{"linux", 1000, 0, map[string]string{"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, account, []string{system}}, // setuid
		{"linux", 0, 1000, map[string]string{"HOME": "/h"}, account, []string{system}},
		{"windows", -1, -1, nil, account, []string{"/home/ana/.config/hasp/config"}},
	} {
		got := paths(c.goos, c.uid, c.euid, func(k string) string { return c.env[k] }, c.home)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, user %d as %d, %v: %q, want %q", c.goos, c.uid, c.euid, c.env, got, c.want)
		}
	}
}
