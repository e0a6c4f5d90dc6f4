//go:build unix

package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
)

// Three processes are replaced one by one, twice: from the old lock to both, and, when no old one is
// left, from both to the new one. The job of one never overlaps that of another. The control: a new
// one beside an old one does.
func TestMoving(t *testing.T) {
	server := backends.StartPostgres(t, backends.PostgresOptions{})
	t.Run("rolling", func(t *testing.T) {
		u := beginUpdate(t, server.URL())
		for range 3 {
			u.add("old")
		}
		for _, generation := range []string{"both", "both", "both", "new", "new", "new"} {
			u.await("ends", 3)
			u.add(generation) // before the oldest is told to stop, as an update does that leaves no gap
			u.await(generation+" runs", 1)
			u.stopOldest()
		}
		u.await("new ends", 6)
		if found := u.overlaps(); len(found) > 0 {
			t.Errorf("overlaps:\n%s", strings.Join(found, "\n"))
		}
	})
	t.Run("control", func(t *testing.T) {
		u := beginUpdate(t, server.URL())
		u.add("old")
		u.add("new")
		for range 100 {
			u.await("ends", 1)
			if len(u.overlaps()) > 0 {
				return
			}
		}
		t.Error("old and new ones exclude each other: this test shows nothing")
	})
}

// update is a rolling update. All processes print to one file.
type update struct {
	t       *testing.T
	url     string
	journal *os.File
	running []*exec.Cmd
	seen    int // lines of the journal that await has passed
}

func beginUpdate(t *testing.T, url string) *update {
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "journal"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &update{t: t, url: url, journal: f}
}

func (u *update) add(generation string) {
	u.t.Helper()
	cmd := program(u.t, u.url+"&ttl=2s", "moving", "-database", u.url, "-generation", generation, "-turn", "20ms")
	cmd.Stdout = u.journal
	start(u.t, cmd)
	u.running = append(u.running, cmd)
}

// stopOldest waits until the oldest process has ended its job and itself.
func (u *update) stopOldest() {
	u.t.Helper()
	oldest := u.running[0]
	u.running = u.running[1:]
	if err := oldest.Process.Signal(syscall.SIGTERM); err != nil {
		u.t.Fatal(err)
	}
	if err := oldest.Wait(); err != nil {
		u.t.Errorf("%s: %v", oldest, err)
	}
}

func (u *update) lines() []string {
	u.t.Helper()
	text, err := os.ReadFile(u.journal.Name())
	if err != nil {
		u.t.Fatal(err)
	}
	return slices.Collect(strings.Lines(string(text)))
}

// await waits for n further lines with the text.
func (u *update) await(text string, n int) {
	u.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		for lines := u.lines(); u.seen < len(lines); {
			if u.seen++; strings.Contains(lines[u.seen-1], text) {
				n--
			}
			if n == 0 {
				return
			}
		}
		if time.Now().After(deadline) {
			u.t.Fatalf("waited for %q in\n%s", text, strings.Join(u.lines(), ""))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// overlaps are the lines of jobs that began before another had ended.
func (u *update) overlaps() (found []string) {
	inside := ""
	for _, line := range u.lines() {
		generation, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		who := generation + strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz")
		switch {
		case strings.HasPrefix(rest, "begins") && inside != "":
			found = append(found, fmt.Sprintf("%s begins inside of %s", who, inside))
		case strings.HasPrefix(rest, "begins"):
			inside = who
		case who == inside:
			inside = ""
		}
	}
	return found
}
