package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// use has the module in dir take ours from this clone, as long as none is published: a replace
// directive for each of names (of all, without names) and for what they require of ours. The
// directives of a module that is replaced do not count in the program that replaces it, so the
// program needs them all; those that it does not import cost it nothing.
//
// A workspace would do for building, but not for go mod tidy, which looks for our modules on the
// network.
func use(out io.Writer, dir string, names []string) error {
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has no go.mod: go mod init there first", dir)
	}
	clone, err := cloneFrom(dir)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = imported
	}
	wanted := append([]string{"."}, names...)
	for i := 0; i < len(wanted); i++ { // grows
		if !slices.Contains(published, wanted[i]) {
			return fmt.Errorf("there is no module %q; there are %s; packages that begin with none of these, filelock say, are in hasp's, which is always taken",
				wanted[i], strings.Join(imported[1:], ", "))
		}
		mod, err := requires(wanted[i])
		if err != nil {
			return err
		}
		for _, d := range mod.ours() {
			if !slices.Contains(wanted, d) {
				wanted = append(wanted, d)
			}
		}
	}
	slices.Sort(wanted)
	for _, d := range slices.Compact(wanted) {
		at := strings.TrimSuffix(clone+"/"+d, "/.")
		if _, err := run(dir, "go", "mod", "edit", "-replace="+importPath(d)+"="+at); err != nil {
			return err
		}
		fmt.Fprintln(out, "replace", importPath(d), "=>", at)
	}
	fmt.Fprintf(out, "written to %s; import what you need, then: go mod tidy\n", filepath.Join(dir, "go.mod"))
	return nil
}

// cloneFrom is the path of this clone as the go.mod file in dir has it: below dir, as a submodule
// is, the same in every checkout, CI's too.
func cloneFrom(dir string) (string, error) {
	here, err := filepath.Abs(".")
	if err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	if below, err := filepath.Rel(dir, here); err == nil && filepath.IsLocal(below) {
		return "./" + filepath.ToSlash(below), nil
	}
	return filepath.ToSlash(here), nil
}
