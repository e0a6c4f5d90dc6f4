package memlock_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

// Two stores of one label are two, and two connections to one store are one: LockAll must
// neither leave out a lock of the other nor wait for itself.
func TestIdentity(t *testing.T) {
	identity := func(b driver.Backend) string {
		t.Helper()
		id, err := b.(driver.Identifier).Identity(t.Context())
		if err != nil || id == "" || len(id) > 200 {
			t.Fatalf("%q, %v", id, err)
		}
		return id
	}
	open := func(name string) driver.Backend {
		t.Helper()
		b, err := driver.Lookup("mem")(t.Context(), &url.URL{Scheme: "mem", Host: name})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := memlock.New()
	for what, pair := range map[string][2]driver.Backend{
		"one store":      {one.Backend(), one.Backend()},
		"one name":       {open("identity-a"), open("identity-a")},
		"the empty name": {open(""), open("")},
	} {
		if a, b := identity(pair[0]), identity(pair[1]); a != b {
			t.Errorf("%s: %q and %q", what, a, b)
		}
	}
	for what, pair := range map[string][2]driver.Backend{
		"two stores":             {memlock.New().Backend(), memlock.New().Backend()},
		"two names":              {open("identity-a"), open("identity-b")},
		"the empty name and New": {open(""), memlock.New().Backend()},
	} {
		if a, b := identity(pair[0]), identity(pair[1]); a == b {
			t.Errorf("%s: both are %q", what, a)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := one.Backend().(driver.Identifier).Identity(ended); err == nil {
		t.Error("answered although the context had ended")
	}
}
