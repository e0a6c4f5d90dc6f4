package main

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every module is published or said not to be, and the workspace has all but the one that is built
// without it: a module that is forgotten here would get no tag.
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
		if in == strings.HasPrefix(dir, "internal/backends/") {
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
