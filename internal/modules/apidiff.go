package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// apidiff tells which changes of the API break programs. Pinned, as the same two versions must be
// judged equally later.
const apidiff = "golang.org/x/exp/cmd/apidiff@v0.0.0-20261011100332-faecfb24eb49"

// compatible fails if the commit breaks programs that use the last release, and the version does not
// say so: it raises only the last of its numbers, or the second one from v1 on. The first release
// has none before it.
//
// Both are compared in their workspaces, which have all of our modules side by side. Alone, a module
// of the last release would be compiled with what it required then, which has to be downloaded.
func compatible(version string) error {
	last, err := lastRelease(version)
	if err != nil || last == "" {
		return err
	}
	dir, err := os.MkdirTemp("", "hasp-api-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	before, after, tree := filepath.Join(dir, "before"), filepath.Join(dir, "after"), filepath.Join(dir, "tree")
	if _, err := run(".", "git", "worktree", "add", "-q", "--detach", tree, last); err != nil {
		return err
	}
	_, err1 := runWith(nil, tree, "go", "run", apidiff, "-m", "-w", before, root)
	_, err2 := runWith(nil, ".", "go", "run", apidiff, "-m", "-w", after, root)
	_, err3 := run(".", "git", "worktree", "remove", "--force", tree)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	changes, err := run(dir, "go", "run", apidiff, "-m", "-incompatible", before, after)
	if err != nil || strings.TrimSpace(changes) == "" {
		return err
	}
	changes = fmt.Sprintf("what breaks programs that use %s:\n%s", last, changes)
	if !mayBreak(numbers(version)) {
		return fmt.Errorf("%s must not change the API so; raise the minor version, or from v1 on the major one; %s", version, changes)
	}
	fmt.Print(changes)
	return nil
}

// mayBreak reports whether a version may break programs that use the one before.
func mayBreak(version []int) bool {
	return version[2] == 0 && (version[0] == 0 || version[1] == 0)
}

// lastRelease is the highest version below this one that has a tag of the root, "" if there is none.
// A release candidate promises nothing, and is none.
func lastRelease(version string) (last string, err error) {
	all, err := run(".", "git", "tag", "--list", "v*")
	for tag := range strings.FieldsSeq(all) {
		if n := numbers(tag); n != nil && !strings.Contains(tag, "-") && slices.Compare(n, numbers(version)) < 0 &&
			(last == "" || slices.Compare(n, numbers(last)) > 0) {
			last = tag
		}
	}
	return last, err
}

// numbers are the three of a version such as v1.2.3 or v1.2.3-rc.1; nil if it is none.
func numbers(version string) []int {
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "-")
	parts := strings.Split(version, ".")
	all := make([]int, len(parts))
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		all[i] = n
	}
	if len(all) != 3 {
		return nil
	}
	return all
}
