// Package processes runs a test in several processes, which share a directory. Tests only.
package processes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
)

const (
	dirEnv  = "HASP_PROCESSES_DIR"
	modeEnv = "HASP_PROCESSES_MODE"
)

// Run runs the calling test anew in n processes, whose calls of Child return dir and mode. It
// returns the output of those that failed.
func Run(t *testing.T, n int, dir, mode string) (failed []string) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
			c.Env = append(os.Environ(), dirEnv+"="+dir, modeEnv+"="+mode)
			if out, err := c.CombinedOutput(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, fmt.Sprintf("%v\n%s", err, out))
			}
		})
	}
	all.Wait()
	return failed
}

// Child returns what Run was given, and whether this process is one of Run's.
func Child() (dir, mode string, is bool) {
	dir = os.Getenv(dirEnv)
	return dir, os.Getenv(modeEnv), dir != ""
}

// Client is a client of the store of a directory, which all of its processes share.
func Client(t *testing.T, dir string) *hasp.Client {
	t.Helper()
	c, err := hasp.Open(t.Context(), "file://"+dir+"/locks")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ErrOverlap says that another process was inside.
var ErrOverlap = errors.New("another is inside at the same time")

// Inside is work that only one process may do at a time: it takes d, and says if another did it
// meanwhile. It writes a line to the file "runs".
func Inside(dir string, d time.Duration) error {
	inside := filepath.Join(dir, "inside")
	f, err := os.OpenFile(inside, os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return ErrOverlap
	}
	if err == nil {
		err = f.Close()
	}
	time.Sleep(d)
	return errors.Join(err, os.Remove(inside), note(dir))
}

func note(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "runs"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, time.Now().Unix())
	return errors.Join(err, f.Close())
}

// Runs are the lines that Inside has written: when each ended, in seconds.
func Runs(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "runs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// Lose has the lock called name taken from its only holder.
func Lose(ctx context.Context, c *hasp.Client, name string) error {
	q, err := c.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if len(q.Holders) != 1 {
		return fmt.Errorf("%d hold %s", len(q.Holders), name)
	}
	return c.Evict(ctx, name, q.Holders[0].ID, "test")
}
