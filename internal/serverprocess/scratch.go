package serverprocess

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// workspace is the directory below which this process's servers work and keep their data, and the
// pipe whose end tells the janitor that this process has ended. The pipe is kept because the
// garbage collector closes an unreachable file.
type workspace struct {
	dir     string
	janitor io.Closer
}

var scratch = sync.OnceValues(func() (workspace, error) {
	dir, err := os.MkdirTemp("", "hasp-servers-")
	if err != nil {
		return workspace{}, err
	}
	dir, err = filepath.EvalSymlinks(dir) // as the kernel will tell a working directory
	if err != nil {
		return workspace{}, err
	}
	// Servers that run under another account pass through; each has its own 0700 below.
	if err := os.Chmod(dir, 0o711); err != nil {
		return workspace{}, err
	}
	janitor, err := startJanitor(dir)
	return workspace{dir, janitor}, err
})

// Local is the address of a server's port.
func Local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// NewDir makes a server's directory, owned by the account it runs as.
func NewDir(name string, a *Account) (string, error) {
	w, err := scratch()
	if err != nil {
		return "", fmt.Errorf("temporary directory: %w", err)
	}
	dir, err := os.MkdirTemp(w.dir, name+"-")
	if err == nil && a != nil {
		err = os.Chown(dir, a.uid, a.gid)
	}
	return dir, err
}

// Tidy removes the directory that all of this process's servers had theirs in, once they are discarded. The
// janitor would do it a moment after this process has ended. No server can be started afterwards.
func Tidy() {
	if w, err := scratch(); err == nil {
		_ = os.Remove(w.dir) // fails where something is left: that is the janitor's
	}
}

// WriteFile writes a server's file, for the account's eyes only: PostgreSQL refuses a
// key that others may read.
func WriteFile(path string, a *Account, lines ...string) error {
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	if a == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}
