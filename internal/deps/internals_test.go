package deps

import (
	"slices"
	"strings"
	"testing"
)

// unimported are modules that no program imports, by the beginnings of their paths: commands, and
// what only this repository builds. They may use the internals of any module.
var unimported = []string{"cmd", "torture", "dev", "examples", "tests", "internal/backends", "redislock/internal/simulation", "redislock/internal/tests"}

// stillInternal are the packages that import internals of another module all the same, and why. No
// package comes to this list.
var stillInternal = map[string]string{
	"./redislock/goredis": "it makes a Conn of redislock's, which is not public",
	"./redislock/redlock": "tests look into a session on real servers",
	"./zklock":            "tests look into a session on real servers",
}

// Modules have versions, and what is internal may change in each. A program may have a newer root
// than its driver, and go mod tidy loads the tests of what it imports: it ends with "does not contain
// package .../internal/testkit". So a module uses no internals of another, in tests neither.
func TestNoInternalsOfOtherModules(t *testing.T) {
	found := map[string]bool{}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		pkgs := list(t, goos)
		if root := pkgs[module]; root.Module == nil || len(root.XTestImports) == 0 {
			t.Fatalf("go list has told nothing of the tests of %s: this test has checked nothing", module)
		}
		for _, p := range pkgs {
			foreign, name := foreignInternals(p, pkgs), short(p.ImportPath)
			if len(foreign) > 0 && !found[name] && stillInternal[name] == "" {
				t.Errorf("%s, or a test of it, imports %q, internal to another module: see CONTRIBUTING.md", name, foreign)
			}
			found[name] = found[name] || len(foreign) > 0
		}
	}
	for p := range stillInternal {
		if !found[p] {
			t.Errorf("%s imports no internals of another module any more: take it off the list", p)
		}
	}
}

// foreignInternals are the imports of p, a package of ours, and of its tests that are internal to
// another module.
func foreignInternals(p pkg, pkgs map[string]pkg) (foreign []string) {
	if !ours(p.ImportPath) || p.Module == nil {
		return nil
	}
	for _, m := range unimported {
		if at := module + "/" + m; p.Module.Path == at || strings.HasPrefix(p.Module.Path, at+"/") {
			return nil
		}
	}
	for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
		internal := slices.Contains(strings.Split(path, "/"), "internal")
		if from := pkgs[path].Module; ours(path) && internal && (from == nil || from.Path != p.Module.Path) {
			foreign = append(foreign, path)
		}
	}
	return foreign
}

// TestForeignInternals shows that the check above can fail.
func TestForeignInternals(t *testing.T) {
	type mod = struct{ Path string }
	root, driver, command := &mod{module}, &mod{module + "/redislock"}, &mod{module + "/cmd/hasp"}
	kit, conn := module+"/internal/testkit", module+"/redislock/internal/redisconn"
	pkgs := map[string]pkg{
		module + "/driver/kit/signal": {Module: root}, kit: {Module: root}, conn: {Module: driver},
		"golang.org/x/sys/internal/unsafeheader": {Module: &mod{"golang.org/x/sys"}},
	}
	for _, c := range []struct {
		what string
		p    pkg
		want []string
	}{
		{"code", pkg{Module: driver, Imports: []string{"fmt", kit}}, []string{kit}},
		{"a white-box test", pkg{Module: driver, TestImports: []string{kit}}, []string{kit}},
		{"a black-box test", pkg{Module: driver, XTestImports: []string{kit}}, []string{kit}},
		{"a package that is gone", pkg{Module: driver, Imports: []string{module + "/internal/gone"}}, []string{module + "/internal/gone"}},
		{"internals of a driver in the root", pkg{Module: root, Imports: []string{conn}}, []string{conn}},
		{"its own internals", pkg{Module: driver, Imports: []string{conn}, XTestImports: []string{conn}}, nil},
		{"the kit", pkg{Module: driver, Imports: []string{module + "/driver/kit/signal"}}, nil},
		{"the root's own", pkg{Module: root, XTestImports: []string{kit}}, nil},
		{"a command", pkg{Module: command, Imports: []string{kit}}, nil},
		{"internals of others", pkg{Module: driver, Imports: []string{"golang.org/x/sys/internal/unsafeheader"}}, nil},
	} {
		c.p.ImportPath = module + "/some"
		if got := foreignInternals(c.p, pkgs); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
