package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// blocks are the fenced blocks of a page, with their language.
func blocks(page string) []string {
	return regexp.MustCompile("(?ms)^```.*?^```$").FindAllString(page, -1)
}

// commands is a block without its comments, which are translated.
func commands(block string) string {
	comment := map[bool]string{true: `(?m)[ \t]+# .*$`, false: `(?m)[ \t]+// .*$`}[strings.HasPrefix(block, "```sh")]
	return regexp.MustCompile(comment).ReplaceAllString(block, "")
}

// The first program of the README compiles and runs as it stands there, in a module of a user's.
func TestReadmeProgram(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(read(t, "README.md"))
	if program == nil {
		t.Fatal("README.md has no program")
	}
	store, dir := t.TempDir(), t.TempDir()
	const url = "file:///tmp/hasp-example"
	if !strings.Contains(program[1], url) {
		t.Fatalf("the program does not open %s", url)
	}
	for name, text := range map[string]string{
		"main.go": strings.Replace(program[1], url, "file://"+store, 1),
		"go.mod":  "module example\n\ngo 1.26.0\n\nrequire github.com/hasplock/hasp v0.0.0\n\nreplace github.com/hasplock/hasp => " + root + "\n",
		"go.sum":  read(t, "go.sum"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "run", "-mod=mod", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "only one of us is here, with token ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The commands and the code of the two READMEs are the same, and so are the stores of their tables.
func TestReadmesInStep(t *testing.T) {
	english, chinese := read(t, "README.md"), read(t, "README.zh-CN.md")
	en, zh := blocks(english), blocks(chinese)
	if len(en) < 3 {
		t.Fatalf("%d blocks in README.md", len(en))
	}
	for i, b := range en {
		if i >= len(zh) || commands(zh[i]) != commands(b) {
			t.Errorf("block %d of README.md is missing or different in README.zh-CN.md:\n%s", i+1, b)
		}
	}
	if len(zh) > len(en) {
		t.Errorf("README.zh-CN.md has %d more blocks", len(zh)-len(en))
	}
	urls := func(page string) []string {
		return regexp.MustCompile("(?m)^\\| .*?\\| `([a-z]+://)").FindAllString(page, -1)
	}
	if n, m := len(urls(english)), len(urls(chinese)); n != m || n == 0 {
		t.Errorf("%d stores in README.md, %d in README.zh-CN.md", n, m)
	}
	if l, m := links(english), links(chinese); !slices.Equal(without(l, "README.zh-CN.md"), without(m, "README.md")) {
		t.Errorf("links of README.md: %q\nof README.zh-CN.md: %q", l, m)
	}
}

func without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == one })
}

// links are the relative ones of a page, each once, sorted, without their anchors.
func links(page string) (all []string) {
	for _, b := range blocks(page) {
		page = strings.Replace(page, b, "", 1)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(page, -1) {
		target, _, _ := strings.Cut(m[1], "#")
		if target != "" && !strings.Contains(target, "://") {
			all = append(all, target)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// No page leads nowhere.
func TestLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 10 {
		t.Fatalf("%d pages found", len(pages))
	}
	for _, p := range pages {
		page, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links(string(page)) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(p), l)); err != nil {
				t.Errorf("%s links to %s: %v", p, l, err)
			}
		}
	}
}

// The pages of the stores have the same headings, so that a reader who knows one knows
// where to look in the others.
func TestBackendHeadings(t *testing.T) {
	pages, err := filepath.Glob("../../docs/backends/*.md")
	if err != nil || len(pages) < 4 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	want := []string{"What it promises", "Options", "Traps"}
	for _, p := range pages {
		page, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, m := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(page), -1) {
			have = append(have, m[1])
		}
		for _, w := range want {
			if !slices.Contains(have, w) {
				t.Errorf("%s has no heading %q; it has %q", p, w, have)
			}
		}
	}
}
