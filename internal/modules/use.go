package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
	here, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = published[:len(published)-1] // nothing imports the command
	}
	wanted := append([]string{"."}, names...)
	for i := 0; i < len(wanted); i++ { // grows
		if !slices.Contains(published, wanted[i]) {
			return fmt.Errorf("there is no module %q; there are %q", wanted[i], published)
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
		replace := importPath(d) + "=" + filepath.Join(here, filepath.FromSlash(d))
		if _, err := run(dir, "go", "mod", "edit", "-replace="+replace); err != nil {
			return err
		}
		fmt.Fprintln(out, "replace", importPath(d), "=>", filepath.Join(here, filepath.FromSlash(d)))
	}
	fmt.Fprintf(out, "written to %s; import what you need, then: go mod tidy\n", filepath.Join(dir, "go.mod"))
	return nil
}
