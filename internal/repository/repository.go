// Package repository finds the store of a git repository: a directory of locks beside its objects,
// which all its worktrees share and git does not commit.
package repository

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Store is the URL of the file store of the repository that dir is in. One that is checked out as a
// submodule has that of its parent: who works on the one works on the other. The directory alone
// decides, and not GIT_DIR, so that all who work in it agree.
//
// It asks no git: containers have none, and to start one would take longer than the lock.
func Store(dir string) (string, error) {
	common, err := find(dir)
	if err != nil {
		return "", err
	}
	at := filepath.ToSlash(filepath.Join(common, "hasp"))
	if !strings.HasPrefix(at, "/") { // a drive's letter
		at = "/" + at
	}
	return (&url.URL{Scheme: "file", Path: at}).String(), nil // with %23 for a # in it, and so on
}

// find looks for the repository at dir and above.
func find(dir string) (common string, err error) {
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		git, err := link(filepath.Join(at, ".git"), "gitdir: ")
		switch {
		case err == nil && isGit(git):
			return outermost(commonOf(git)), nil
		case err == nil:
			return "", fmt.Errorf("%s names %s, which is no git directory", filepath.Join(at, ".git"), git)
		case isGit(at): // bare, or in the git directory itself
			return outermost(commonOf(at)), nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		case at == filepath.Dir(at):
			return "", fmt.Errorf("%s is in no git repository", dir)
		}
	}
}

// link is the path that stands in a file, or path itself where that is a directory.
func link(path, prefix string) (string, error) {
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return path, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	to, found := strings.CutPrefix(strings.TrimRight(string(text), "\r\n"), prefix)
	if !found {
		return "", fmt.Errorf("%s does not begin with %q", path, prefix)
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(path), to)
	}
	return to, nil
}

// isGit reports whether path is a git directory, of a repository or of a linked worktree.
func isGit(path string) bool {
	has := func(name string) bool {
		_, err := os.Lstat(filepath.Join(path, name))
		return err == nil
	}
	return has("HEAD") && (has("commondir") || has("objects") && has("refs"))
}

// commonOf is the directory that the worktrees of a git directory share.
func commonOf(git string) string {
	common, err := link(filepath.Join(git, "commondir"), "")
	if err != nil {
		common = git
	}
	if real, err := filepath.EvalSymlinks(common); err == nil {
		return real
	}
	return common
}

// outermost is the repository that a submodule's is below: in "modules" of its git directory, or of
// that of a worktree.
func outermost(common string) string {
	for at := common; at != filepath.Dir(at); at = filepath.Dir(at) {
		if parent := filepath.Dir(at); filepath.Base(at) == "modules" && isGit(parent) {
			return outermost(commonOf(parent))
		}
	}
	return common
}
