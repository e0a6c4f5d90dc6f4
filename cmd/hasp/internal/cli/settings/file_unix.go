//go:build unix

package settings

import (
	"io/fs"
	"os"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/secrets"
	"github.com/hasplock/hasp/internal/exit"
)

const nonBlocking = syscall.O_NONBLOCK

// trustFile refuses a file that another user could have written, and one with a password that
// others can read.
func trustFile(c *File, info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return exit.Misconfigured("%s belongs to user %d: settings are taken from files of root and of this user only; chown it, or set XDG_CONFIG_HOME", c.Path, st.Uid)
	}
	mode := info.Mode().Perm()
	if mode&0o022 != 0 {
		return exit.Misconfigured("others may write %s (mode %04o); chmod go-w %s", c.Path, mode, c.Path)
	}
	for _, s := range c.settings {
		if mode&0o077 != 0 && secrets.InValue(s.Value) {
			return exit.Misconfigured("%s: %s has a password, and others may read the file (mode %04o); chmod 600 %s", s.From, s.Key, mode, c.Path)
		}
	}
	return nil
}
