package testkit

import (
	"io"
	"os"
	"strings"
	"testing"
)

// Prints runs an example that needs a server, and requires that it writes this to the standard
// output. Package testing runs every example with a stated output, and cannot skip it without a
// server; so the output is stated in a test. Tests that print may not run meanwhile.
func Prints(t testing.TB, want string, example func()) {
	t.Helper()
	if got := printed(t, example); strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("printed:\n%s\nwant:\n%s", got, want)
	}
}

// printed returns the standard output of fn.
func printed(t testing.TB, fn func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	fn() // a few lines fit into the pipe
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
