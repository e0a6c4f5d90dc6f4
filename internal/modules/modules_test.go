package main

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every module is published or said not to be, and the workspace has all but those that are built
// without it, for the versions that they need: a module that is forgotten here would get no tag.
func TestEveryModuleIsKnown(t *testing.T) {
	var found []string
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "go.mod" {
			dir, _ := filepath.Rel("../..", filepath.Dir(path)) // it is below
			found = append(found, filepath.ToSlash(dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Concat(published, unpublished)
	slices.Sort(known)
	slices.Sort(found)
	if !slices.Equal(found, known) {
		t.Errorf("there are %q; known are %q", found, known)
	}
	workspace, err := run("../..", "go", "work", "edit", "-json", "go.work")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range found {
		in := strings.Contains(workspace, `"DiskPath": "./`+dir+`"`) || strings.Contains(workspace, `"DiskPath": "`+dir+`"`)
		if alone := dir == "dev" || strings.HasPrefix(dir, "internal/backends/"); in == alone {
			t.Errorf("%s is in go.work: %t", dir, in)
		}
	}
}

func TestIntruders(t *testing.T) {
	const sums = "github.com/a/b v1.0.0 h1:x=\npgregory.net/rapid v1.3.0/go.mod h1:y=\n"
	if err := intruders("etcdlock", sums); err == nil || !strings.Contains(err.Error(), "rapid") {
		t.Errorf("rapid in go.sum: %v", err)
	}
	for dir, sums := range map[string]string{"drivertest/programs": sums, "etcdlock": "github.com/a/b v1.0.0 h1:x=\n", ".": ""} {
		if err := intruders(dir, sums); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestOtherVersions(t *testing.T) {
	workspace := map[string]string{"google.golang.org/grpc": "v1.84.0", "github.com/a/b": "v1.0.0"}
	err := otherVersions("etcdlock", "google.golang.org/grpc v1.83.2\ngithub.com/a/b v1.0.0\n\n", workspace)
	if err == nil || !strings.Contains(err.Error(), "v1.83.2, and v1.84.0") || strings.Contains(err.Error(), "a/b") {
		t.Errorf("an older grpc: %v", err)
	}
	if err := otherVersions("etcdlock", "github.com/a/b v1.0.0\ngithub.com/hasplock/hasp v0.0.0\n", workspace); err != nil {
		t.Errorf("the same: %v", err)
	}
}

func TestMayBreak(t *testing.T) {
	for version, want := range map[string]bool{
		"v0.2.0": true, "v0.2.1": false, "v0.0.1": false, "v1.0.0": true, "v1.1.0": false, "v1.0.1": false, "v2.0.0": true, "v0.3.0-rc.1": true,
	} {
		if mayBreak(numbers(version)) != want {
			t.Errorf("%s: not %t", version, want)
		}
	}
	for _, none := range []string{"v1", "v1.2", "v1.2.x", "x", "v1.2.3.4"} {
		if numbers(none) != nil {
			t.Errorf("%s is a version", none)
		}
	}
}
