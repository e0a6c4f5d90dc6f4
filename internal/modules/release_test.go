package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/testtier"
)

// A release can be installed and imported, each module alone: by go, from its tags. What other
// people's modules it needs come from the cache that has built ours, if they are there.
func TestRelease(t *testing.T) {
	testtier.Long(t)
	do := command(t)
	clone, version := filepath.Join(t.TempDir(), "clone"), "v0.77.0"
	source := strings.TrimSpace(do(".", "git", "rev-parse", "--show-toplevel"))
	do(".", "git", "clone", "-q", source, clone)
	do(clone, "git", "config", "user.name", "releaser")
	do(clone, "git", "config", "user.email", "releaser@example.com")
	t.Chdir(clone)
	before := do(clone, "git", "rev-parse", "HEAD")
	if err := release(version); err != nil {
		t.Fatal(err)
	}
	if after := do(clone, "git", "rev-parse", "HEAD"); after != before || do(clone, "git", "status", "--porcelain") != "" {
		t.Errorf("the branch has moved from %s to %s, or files have changed", before, after)
	}
	for _, again := range []string{"1.2", version} {
		if err := release(again); err == nil {
			t.Errorf("released: %s", again)
		}
	}

	cache, proxy := strings.TrimSpace(do(".", "go", "env", "GOMODCACHE")), strings.TrimSpace(do(".", "go", "env", "GOPROXY"))
	config := filepath.Join(t.TempDir(), "gitconfig")
	text := "[url \"" + clone + "\"]\n\tinsteadOf = https://github.com/hasplock/hasp\n[protocol \"file\"]\n\tallow = always\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"GIT_CONFIG_GLOBAL": config, "GOWORK": "off", "GOFLAGS": "-modcacherw",
		"GOPRIVATE": "github.com/hasplock/*", "GONOSUMDB": "*", "GOMODCACHE": filepath.Join(t.TempDir(), "cache"),
		"GOPROXY": "file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download")) + "," + proxy,
	} {
		t.Setenv(key, value)
	}
	// -n resolves all modules and compiles nothing. It refuses a module with replace directives.
	user := t.TempDir()
	do(user, "go", "install", "-n", importPath("cmd/hasp")+"@"+version)
	do(user, "go", "mod", "init", "user")
	program := "package main\n\nimport (\n"
	for _, dir := range []string{"etcdlock", "redislock/goredis", "pglock", "promhasp"} {
		program += "\t_ \"" + importPath(dir) + "\"\n"
	}
	if err := os.WriteFile(filepath.Join(user, "main.go"), []byte(program+")\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"etcdlock", "redislock/goredis", "pglock", "promhasp"} {
		do(user, "go", "get", importPath(dir)+"@"+version)
	}
	if linked := do(user, "go", "list", "-deps", "."); !strings.Contains(linked, importPath("redislock")+"\n") {
		t.Errorf("the program links\n%s", linked)
	}
}

// command runs a command and returns what it prints.
func command(t *testing.T) func(dir, name string, args ...string) string {
	return func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
}
