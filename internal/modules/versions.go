package main

import (
	"errors"
	"fmt"
	"strings"
)

// versions compares what the workspace links with what a module links alone, as it does for its
// users: tests that run with other versions prove nothing for them. go work sync, and then go mod
// tidy in each module, makes them equal.
func versions() error {
	all, err := runWith(nil, ".", "go", "list", "-m", "-f", "{{.Path}} {{.Version}}", "all")
	if err != nil {
		return err
	}
	inWorkspace := map[string]string{}
	for line := range strings.Lines(all) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		inWorkspace[path] = version
	}
	var wrong []error
	for _, dir := range published {
		alone, err := run(dir, "go", "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", "./...")
		if err != nil {
			return err
		}
		wrong = append(wrong, otherVersions(dir, alone, inWorkspace))
	}
	return errors.Join(wrong...)
}

// otherVersions returns an error if a line "PATH VERSION" of alone has another version than the
// workspace.
func otherVersions(dir, alone string, inWorkspace map[string]string) error {
	var wrong []error
	seen := map[string]bool{}
	for line := range strings.Lines(alone) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		if seen[path] || path == "" || strings.HasPrefix(path, root) {
			continue
		}
		seen[path] = true
		if has := inWorkspace[path]; has != version {
			wrong = append(wrong, fmt.Errorf("%s links %s %s, and %s in the workspace, where its tests run: go work sync, then go mod tidy in each module",
				importPath(dir), path, version, has))
		}
	}
	return errors.Join(wrong...)
}
