package testkit

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Program runs a program of PATH, by default on a store, and returns its exit code and what it
// printed. The test fails if the program, or one that it starts, has a data race.
func Program(t *testing.T, name, store string, args ...string) (code int, out, errOut string) {
	t.Helper()
	races, err := os.MkdirTemp(temp, "hasp-races-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(races)
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(t.Context(), name, args...)
	c.Env = append(os.Environ(), "HASP_STORE="+store, "GORACE=atexit_sleep_ms=0 log_path="+races+"/race") // not a second for each process
	c.Stdout, c.Stderr = &stdout, &stderr
	err = c.Run()
	noRaces(t, races)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// temp is where temporary files are before a test says otherwise.
var temp = os.TempDir()

// noRaces looks at the reports of the race detector: also at those of the processes that
// hasp-torture starts, of which it tells the last line, or nothing if they are killed.
func noRaces(t *testing.T, dir string) {
	t.Helper()
	reports, err := filepath.Glob(filepath.Join(dir, "race*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, report := range reports {
		text, err := os.ReadFile(report)
		t.Errorf("a data race (%v):\n%s", err, text)
	}
}
