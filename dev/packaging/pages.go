package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Where the pages of a package are. They keep their places below it, since they link each other.
const pagesDir = "usr/share/doc/hasp"

// What is installed beside the programs to be read, copied or applied.
var pages = []string{
	"README.md", "CHANGELOG.md", "SECURITY.md", "docs/*.md", "docs/backends/*.md", "docs/internals/*.md", "docs/agents/*.md",
	"docs/grafana/*", "docs/img/*", "dev/packaging/Dockerfile", "dev/packaging/kubernetes/*", "dev/packaging/kubernetes/base/*", "dev/packaging/serve/*",
}

// pages returns them. A link to a file that is not installed, such as one of the source, leads to
// the repository at the version's tag.
func (r *release) pages() ([]file, error) {
	installed := map[string]bool{}
	var names []string
	for _, pattern := range pages {
		found, err := filepath.Glob(filepath.Join(r.root, pattern))
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("%d files %s: %w", len(found), pattern, err)
		}
		for _, f := range found {
			info, err := os.Stat(f)
			if err != nil {
				return nil, err
			}
			if info.IsDir() {
				continue
			}
			name := path.Join(path.Dir(pattern), filepath.Base(f))
			names = append(names, name)
			installed[name] = true
		}
	}
	var files []file
	for _, name := range names {
		f := file{path.Join(pagesDir, name), filepath.Join(r.root, filepath.FromSlash(name)), nil, 0o644}
		if path.Ext(name) == ".md" {
			text, err := os.ReadFile(f.from)
			if err != nil {
				return nil, err
			}
			f.from, f.text = "", []byte(r.relink(string(text), name, installed))
		}
		files = append(files, f)
	}
	return files, nil
}

// The target of a link or an image in Markdown, without what follows the #.
var link = regexp.MustCompile(`\]\(([^)#\s]+)`)

// relink makes the links of a page lead where they are promised.
func (r *release) relink(text, page string, installed map[string]bool) string {
	return link.ReplaceAllStringFunc(text, func(found string) string {
		target := strings.TrimPrefix(found, "](")
		if strings.Contains(target, ":") {
			return found
		}
		name := path.Join(path.Dir(page), target)
		if installed[name] {
			return found
		}
		return "](https://" + module + "/blob/" + r.version + "/" + name
	})
}
