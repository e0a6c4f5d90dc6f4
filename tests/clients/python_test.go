// Package clients_test tests the clients of hasp serve in other languages: against a real server, in front of
// a real Redis. Their own test programs do the work.
package clients_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/haspbin"
)

// run runs a program in a directory, and fails with its output.
func run(t *testing.T, dir string, env []string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// setUp copies a client to work/source, because it is built in its directory. The environment has what its tests use.
func setUp(t *testing.T, client string) (work string, env []string) {
	t.Helper()
	source, err := filepath.Abs(filepath.Join("../../clients", client))
	if err != nil {
		t.Fatal(err)
	}
	work = t.TempDir()
	run(t, work, nil, "cp", "-r", source, "source")
	return work, []string{"HASPLOCK_BIN=" + haspbin.Build(t), "HASP_STORE=" + backends.SharedRedis(t).URL()}
}

// The package is installed by pip into a new environment, as a user does; its types are checked; and
// its tests run: timing by a clock of theirs, and a server that is killed, started anew and left for dead, with a
// client that is stopped.
func TestPython(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	python := backends.Python(t)
	work, env := setUp(t, "python")
	run(t, work, nil, python, "-m", "venv", "env")
	run(t, work, nil, "env/bin/pip", "install", "--quiet", "--disable-pip-version-check", "./source", "mypy")
	run(t, work+"/source", nil, "../env/bin/mypy", "--strict", "src/hasplock")
	run(t, work+"/source", env, "../env/bin/python", "-W", "error", "-m", "unittest", "discover", "-s", "tests")
}
