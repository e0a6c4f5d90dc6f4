// Package haspbin builds the commands, for tests in another module than its packages.
package haspbin

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// Build builds hasp with all stores but zookeeper, and returns its file, which is removed when the
// process has ended.
func Build(t testing.TB) string { return built(t, hasp) }

// BuildTorture is Build for hasp-torture.
func BuildTorture(t testing.TB) string { return built(t, torture) }

func built(t testing.TB, build func() (string, error)) string {
	t.Helper()
	file, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// Each is built once: to link it takes a second and a half of processor time, also if nothing has
// changed.
var (
	hasp    = sync.OnceValues(func() (string, error) { return build("cmd/hasp") })
	torture = sync.OnceValues(func() (string, error) { return build("torture/hasp-torture") })
)

func build(program string) (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/hasplock/hasp").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	dir, err := serverprocess.NewDir("hasp", nil)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "hasp")
	c := exec.Command("go", "build", "-tags", "grpcnotrace,nozookeeper", "-o", file, ".")
	c.Dir = filepath.Join(strings.TrimSpace(string(root)), filepath.FromSlash(program))
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return file, nil
}
