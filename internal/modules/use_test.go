package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A program in an empty folder takes hasp from the clone, as the README says: it is tidied, built
// and run without a workspace.
func TestUse(t *testing.T) {
	dir := t.TempDir()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(readme), "```go\n")
	program, _, _ = strings.Cut(program, "```")
	program = strings.Replace(program, "file:///tmp/hasp-example", "file://"+filepath.ToSlash(dir)+"/locks", 1)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..")
	if err := use(&bytes.Buffer{}, dir, nil); err == nil || !strings.Contains(err.Error(), "go mod init") {
		t.Errorf("without go.mod: %v", err)
	}
	if _, err := run(dir, "go", "mod", "init", "example.com/user"); err != nil {
		t.Fatal(err)
	}
	if err := use(&bytes.Buffer{}, dir, []string{"filelock"}); err == nil || !strings.Contains(err.Error(), "redislock") || !strings.Contains(err.Error(), "hasp's") {
		t.Errorf("a package, and no module: %v", err)
	}
	var said bytes.Buffer
	if err := use(&said, dir, []string{"redislock/goredis"}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{root, root + "/redislock", root + "/redislock/goredis"} {
		if !strings.Contains(said.String(), "replace "+m+" => ") {
			t.Errorf("%s is not replaced:\n%s", m, &said)
		}
	}
	for _, command := range [][]string{{"mod", "tidy"}, {"vet", "."}, {"run", "."}} {
		out, err := run(dir, "go", command...)
		if err != nil {
			t.Fatalf("go %s: %v", strings.Join(command, " "), err)
		}
		if command[0] == "run" && !strings.Contains(out, "only one of us is here") {
			t.Errorf("the program says %q", out)
		}
	}
}

// A clone in the user's repository is named by a path that every checkout of it has.
func TestUseSubmodule(t *testing.T) {
	clone, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(clone)
	for from, want := range map[string]string{
		filepath.Dir(clone): "./" + filepath.Base(clone),
		t.TempDir():         filepath.ToSlash(clone),
	} {
		if got, err := cloneFrom(from); got != want || err != nil {
			t.Errorf("from %s: %q, %v; want %q", from, got, err, want)
		}
	}
}
