package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The new lines of MIGRATING.md, each fragment behind "// after", and those of the README for each kind
// of lock compile, but for variables that it does not use or declares twice.
func TestFragments(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	_, kinds, _ := strings.Cut(read(t, "README.md"), "```go\n")
	_, kinds, _ = strings.Cut(kinds, "```go\n") // the second block, after the program
	kinds, _, _ = strings.Cut(kinds, "```")
	fragments := []string{"lease, err := c.Mutex(\"control\").Locked(ctx)\n", kinds}
	for _, b := range blocks(read(t, "docs/MIGRATING.md")) {
		if _, after, found := strings.Cut(b, "// after"); found && strings.HasPrefix(b, "```go\n") {
			_, after, _ = strings.Cut(after, "\n")
			fragments = append(fragments, strings.TrimSuffix(after, "```"))
		}
	}
	if len(fragments) < 10 || !strings.Contains(kinds, "Semaphore") {
		t.Fatalf("%d fragments", len(fragments))
	}
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module fragments\n\ngo 1.26.0\n\nrequire github.com/hasplock/hasp v0.0.0\n\nreplace github.com/hasplock/hasp => "+root+"\n")
	write("go.sum", read(t, "go.sum"))
	for i, f := range fragments {
		write(fmt.Sprintf("f%d.go", i), fmt.Sprintf(`package fragments
import ("context"; "errors"; "github.com/hasplock/hasp")
var _ = errors.New
func f%d(ctx context.Context, c *hasp.Client, id string) error {
%s
return nil }
`, i, strings.ReplaceAll(f, "{ ... }", "{ return nil }")))
	}
	cmd := exec.Command("go", "build", "-mod=mod", "-gcflags=-e", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	out, _ := cmd.CombinedOutput() // it fails by the control
	left := regexp.MustCompile(`declared and not used|no new variables|^#|^$`)
	caught := false
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		switch {
		case left.MatchString(line):
		case strings.Contains(line, "f0.go:") && strings.Contains(line, "Locked undefined"):
			caught = true
		default:
			t.Errorf("README.md (f1) or docs/MIGRATING.md: %s", line)
		}
	}
	if !caught {
		t.Errorf("the control compiles:\n%s", out)
	}
}

// What LEADER.md shows is in the programs that the tests of examples/ run.
func TestLeaderPage(t *testing.T) {
	page := read(t, "docs/LEADER.md")
	trimmed := func(text string) string { return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(text, "") }
	for program, part := range map[string]string{
		"examples/scheduler/main.go": `(?s)for ctx\.Err\(\) == nil \{.*?return nil // and campaign again`,
		"examples/moving/main.go":    `return locks\.Do\(ctx, "report", job\)`,
	} {
		shown := regexp.MustCompile(part).FindString(page)
		if shown == "" || !strings.Contains(trimmed(read(t, program)), trimmed(shown)) {
			t.Errorf("%s has not what docs/LEADER.md shows of it: %q", program, shown)
		}
	}
}
