//go:build unix

package guardtest

import (
	"io"
	"os"
	"testing"
)

// Printed returns what fn, an example that needs a server, writes to the standard output.
func Printed(t *testing.T, fn func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	fn() // a few lines fit into the pipe
	w.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
