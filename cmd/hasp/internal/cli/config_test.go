//go:build unix

package cli

import (
	"errors"
	"slices"
	"testing"
)

// Root's file is that of its account, also where a sudo has kept another user's HOME; a program
// that runs with the rights of another user than its caller takes neither's.
func TestConfigPaths(t *testing.T) {
	account := func() (string, error) { return "/home/ana", nil }
	none := func() (string, error) { return "", errors.New("no such user") }
	const system = "/etc/hasp/config"
	for _, c := range []struct {
		goos      string
		uid, euid int
		env       map[string]string
		home      func() (string, error)
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
		got := configPaths(c.goos, c.uid, c.euid, func(k string) string { return c.env[k] }, c.home)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, user %d as %d, %v: %q, want %q", c.goos, c.uid, c.euid, c.env, got, c.want)
		}
	}
}

func TestHasPassword(t *testing.T) {
	for value, want := range map[string]bool{
		"redis://h": false, "redis://ana@h": false, "redis://:s3cret@h": true, "redis://ana:s3#cret@h:1": true,
		"redis://h?sentinel_password=x": true, "mysql://h/db?password_file=/run/secret": false, "postgres://h/db?passfile=/x": false,
		"postgres://h/db?sslpassword=x": true, "redis://h?password=a;b": true, "redis://h?x=1;password=s": true, "mysql://h/db?password_file=/x;y": false, "30s": false, "50%": false, "redis://ana:50%@h": true,
		"hasp+https://t0ken@h": true, "hasp+http://t0ken@127.0.0.1": true, "hasp+https://h": false, "hasp+https://h?token_file=/x": false,
	} {
		if got := hasPassword(value); got != want {
			t.Errorf("%s: %t", value, got)
		}
	}
}
