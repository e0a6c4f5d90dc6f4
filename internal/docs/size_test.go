package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sizes are the groups of pages and the most words that each may have: beyond that they are not
// read. A page that grows makes room in its group. PERFORMANCE.md and TORTURE-RUNS.md are made.
var sizes = []struct {
	group string
	words int
	pages []string
}{
	{"the users' pages", 38000, []string{
		"README.md", "docs/CHOOSING.md", "docs/INSTALL.md", "docs/LEASE.md", "docs/GUARANTEES.md", "docs/FENCING.md",
		"docs/RECIPES.md", "docs/MIGRATING.md", "docs/INTEROP.md", "docs/SERVE.md", "docs/METRICS.md", "docs/LEADER.md",
		"docs/TROUBLESHOOTING.md", "docs/UPGRADING.md",
		"docs/backends/*.md", "docs/agents/*.md", "clients/*/README.md",
	}},
	{"how it works", 22000, []string{"docs/ARCHITECTURE.md", "docs/DRIVERS.md", "docs/TORTURE.md", "docs/internals/*.md"}},
}

func TestPagesAreShort(t *testing.T) {
	for _, g := range sizes {
		words, files := 0, 0
		for _, pattern := range g.pages {
			paths, err := filepath.Glob(filepath.Join("../..", pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				words += len(strings.Fields(read(t, strings.TrimPrefix(filepath.ToSlash(path), "../../"))))
				files++
			}
		}
		if words > g.words || files < len(g.pages) {
			t.Errorf("%s: %d words in %d files, at most %d are wanted", g.group, words, files, g.words)
		}
	}
}

var (
	heading = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	// GitHub's rule: lower case, without punctuation, a hyphen for each space.
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	anchor  = regexp.MustCompile(`\]\(([^)\s#]*)#([^)\s]+)\)`)
)

// Each link to a part of a page leads to a heading of that page, and no heading stands there twice
// in a row: such a link would lead to the first, an empty part.
func TestAnchors(t *testing.T) {
	found := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "clients/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			name := strings.TrimPrefix(filepath.ToSlash(path), "../../")
			here := anchors(read(t, name))
			for i := range here {
				if i > 0 && here[i] == here[i-1] {
					t.Errorf("%s has the heading %q twice in a row", name, here[i])
				}
			}
			for _, m := range anchor.FindAllStringSubmatch(read(t, name), -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				found++
				target := name
				if m[1] != "" {
					target = filepath.ToSlash(filepath.Join(filepath.Dir(name), m[1]))
				}
				if !slices.Contains(anchors(read(t, target)), m[2]) {
					t.Errorf("%s links to %s#%s, and there is no such heading", name, target, m[2])
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d links to parts of pages were found", found)
	}
}

func anchors(page string) (all []string) {
	for _, b := range blocks(page) {
		page = strings.Replace(page, b, "", 1)
	}
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}
