// Package haspbin builds the command, for tests in another module than its packages.
package haspbin

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Build builds hasp with the stores redis and etcd, and returns its file. Go compiles anew only what has changed.
func Build(t testing.TB) string {
	t.Helper()
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/hasplock/hasp").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	file := filepath.Join(t.TempDir(), "hasp")
	c := exec.Command("go", "build", "-tags", "grpcnotrace,nomysql,nopostgres,nozookeeper", "-o", file, ".")
	c.Dir = filepath.Join(string(root[:len(root)-1]), "cmd", "hasp")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return file
}
