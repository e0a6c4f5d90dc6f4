//go:build unix

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Every driver of a network takes lists of hosts as package driver splits them: IPv6 addresses go
// as far as a dial, and what is no list is refused by its name. Drivers with one host say that they
// have one.
func TestEveryDriverTakesListsOfHosts(t *testing.T) {
	single := map[string]bool{"hasp+http": true, "hasp+https": true, "mysql": true, "mariadb": true}
	const dead = "[::1]:1,[::1]:2,[::1]:3" // nothing listens there
	for _, scheme := range driver.Schemes() {
		if scheme == "file" || scheme == "mem" || scheme == "kube" || scheme == "s3" { // these name no host
			continue
		}
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			open := func(hosts string) error {
				path := ""
				if scheme == "mysql" || scheme == "mariadb" {
					path = "/db"
				}
				user := ""
				if strings.HasPrefix(scheme, "postgres") || path != "" {
					user = "u:p@"
				}
				b, err := driver.Open(ctx, scheme+"://"+user+hosts+path)
				if err == nil { // redlock connects when it is used
					err = b.Close()
				}
				return err
			}
			for what, hosts := range map[string]string{"blank": "a:1, b:1,c:1", "brackets": "::1,::2,::3", "port": "a:1,b:x,c:1", "missing": "a:1,,b:1"} {
				err := open(hosts)
				if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), what) {
					t.Errorf("%s: %v; want a word of %s", hosts, err, what)
				}
			}
			if single[scheme] {
				if err := open(dead); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "one host") {
					t.Errorf("several hosts: %v", err)
				}
				if err := open("[::1]:1"); err == nil || errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "[::1]:1") {
					t.Errorf("an IPv6 address: %v", err)
				}
				return
			}
			if err := open(dead); errors.Is(err, driver.ErrInvalid) {
				t.Errorf("IPv6 addresses: %v", err)
			}
		})
	}
}
