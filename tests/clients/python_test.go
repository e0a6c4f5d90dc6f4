package clients_test

import (
	"path/filepath"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

// pythons are the runtimes that the tests use: Debian's, and the oldest that is promised.
func pythons(t *testing.T) map[string]string {
	return map[string]string{"CPython": backends.Python(t), "PyPy": backends.PyPy(t)}
}

// installPython installs the package as a user does, into a new environment, whose Python it returns.
func installPython(t *testing.T, python, work string) string {
	t.Helper()
	run(t, work, nil, python, "-m", "venv", "env")
	run(t, work, nil, "env/bin/pip", "install", "--quiet", "--disable-pip-version-check", "./source")
	return filepath.Join(work, "env/bin/python")
}

// The package is installed by pip, with its license, and its tests run: timing by a clock of theirs,
// odd answers, and a server that is killed, started anew and left for dead, with a client that is
// stopped.
func TestPython(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	env := environment(t)
	for name, python := range pythons(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work := setUp(t, "python")
			python := installPython(t, python, work)
			run(t, work, nil, "sh", "-c", "ls -R env/lib/*/site-packages/hasp_lock-*.dist-info | grep LICENSE")
			run(t, work+"/source", env, python, "-W", "error", "-m", "unittest", "discover", "-s", "tests")
		})
	}
}

// Its types are checked, those of a program that uses it too: a mistyped option is found before the
// program runs, of both clients.
func TestPythonTypes(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	work := setUp(t, "python")
	python := installPython(t, backends.Python(t), work)
	run(t, work, nil, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "mypy")
	run(t, work+"/source", nil, python, "-m", "mypy", "--strict", "src/hasplock")
	for _, client := range []string{"hasplock.Client", "hasplock.aio.Client"} {
		head := "import hasplock.aio\n\nclient = " + client
		write(t, work+"/right.py", head+"(ttl=10, token=\"t\", note=\"n\")\nlock = client.lock(\"a\", timeout=3, note=\"n\", ask=\"a\")\n")
		run(t, work, nil, python, "-m", "mypy", "--strict", "right.py")
		write(t, work+"/wrong.py", head+"(tttl=10)\nlock = client.lock(\"a\", timeot=3)\nother = client.semaphore(\"a\", \"3\")\n")
		out, err := try(t, work, nil, python, "-m", "mypy", "--strict", "wrong.py")
		mentions(t, out, err, "tttl", "timeot", `expected "int"`)
	}
}
