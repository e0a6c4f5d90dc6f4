package job

import (
	"io/fs"
	"os"
	"testing"
)

// A command that is not there and one that may not be run have the exit codes of a shell.
func TestNotRunnable(t *testing.T) {
	for want, err := range map[int]error{127: fs.ErrNotExist, 126: &os.PathError{Err: fs.ErrPermission}} {
		if got := notRunnable("x", err).Code; got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
	}
}
