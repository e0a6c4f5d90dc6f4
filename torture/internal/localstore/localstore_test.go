package localstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// What docs/GUARANTEES.md promises after a server was started anew.
func TestMayForget(t *testing.T) {
	for spec, want := range map[string][2]bool{ // by a restart, by older data
		"redis": {false, false}, "redis?strategy=setnx": {false, false}, "redlock": {false, false},
		"redis?quarantine=off": {true, true}, "redlock?quarantine=off": {true, true},
		"etcd": {false, true}, "zookeeper": {false, true}, "postgres": {false, true}, "mariadb?strategy=getlock": {false, true},
	} {
		s, err := Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{s.MayForget(true, true), s.MayForget(false, true)}; got != want {
			t.Errorf("%s: %v, want %v", spec, got, want)
		}
	}
	if s, _ := Parse("redis"); !s.MayForget(false, false) || !s.MayForget(true, false) {
		t.Error("another library's locks in Redis outlive that the server forgets")
	}
}

func TestParse(t *testing.T) {
	for _, bad := range []string{"", "mongodb", "redis://127.0.0.1", "redis?%zz"} {
		if s, err := Parse(bad); err == nil {
			t.Errorf("%q is %+v", bad, s)
		}
	}
}

// A program that is missing is named with the place where it was looked for, and nothing is left.
func TestMissingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := find("no-such-server", filepath.Join(t.TempDir(), "*", "no-such-server"), "no-such-package")
	if err == nil || !strings.Contains(err.Error(), "no-such-server is not installed") || !strings.Contains(err.Error(), "apt install no-such-package") {
		t.Errorf("%v", err)
	}
	versions := t.TempDir()
	for _, v := range []string{"13", "15"} {
		if err := os.MkdirAll(filepath.Join(versions, v), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(versions, v, "no-such-server"), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if path, err := find("no-such-server", filepath.Join(versions, "*", "no-such-server"), ""); err != nil || filepath.Base(filepath.Dir(path)) != "15" {
		t.Errorf("%q, %v: want the newest", path, err)
	}
}

// Who breaks it off while the server starts gets no store, and leaves none.
func TestBrokenOffWhileItStarts(t *testing.T) {
	if _, err := find("redis-server", "/usr/bin/redis-server", "redis-server"); err != nil || !serverprocess.Supported {
		t.Skip("no Redis to start: ", err)
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancel(t.Context())
	spec, _ := Parse("redis")
	_, err := Start(ctx, spec, func(context.Context, string) error {
		cancel()
		return errors.New("not yet")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
