//go:build unix

package torture

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	_ "github.com/hasplock/hasp/filelock"
)

// TestMain runs the tests, or a worker for which a test has started this binary again. With apart,
// each worker locks in a separate store, so that no lock excludes any other process.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "planted" {
		planted(os.Args[2])
		os.Exit(0)
	}
	if len(os.Args) < 2 || !strings.HasPrefix(os.Args[1], "worker") {
		os.Exit(m.Run())
	}
	open := Opener(hasp.Open)
	if os.Args[1] == "worker-apart" {
		open = func(ctx context.Context, store string, opts ...hasp.Option) (*hasp.Client, error) {
			return hasp.Open(ctx, fmt.Sprint(store, "-", os.Getpid()), opts...)
		}
	}
	if err := Worker(os.Stdin, os.Stdout, open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func config(t *testing.T, how string) Config {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Store: (&url.URL{Scheme: "file", Path: filepath.Join(t.TempDir(), "locks")}).String(),
		For:   4 * time.Second, Processes: 3, Names: DefaultNames, Faults: Local, Every: time.Second / 2, Seed: 1, TTL: time.Second,
		Open: hasp.Open, Worker: []string{self, how}, Say: func(text string) { t.Log(text) },
	}
}

// Locks that exclude no other client are caught, the numbers say so, and the record is kept.
func TestBrokenLockIsCaught(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	v, err := Run(t.Context(), config(t, "worker-apart"))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(v.Text())
	if v.Result != BrokenResult || v.Overlaps.Broken == 0 || v.LostPlain == 0 || len(v.Violations) != mostShown {
		t.Errorf("no lock at all: %s", v.Text())
	}
	if records, _ := filepath.Glob(filepath.Join(v.Record, "*.history")); len(records) < 3 {
		t.Errorf("the record in %q has %q", v.Record, records)
	}
}

func TestNothingIsLeftOfARunThatIsBrokenOff(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	c := config(t, "worker")
	ctx, cancel := context.WithCancel(t.Context())
	c.For = time.Hour
	time.AfterFunc(2*time.Second, cancel)
	if v, err := Run(ctx, c); err != context.Canceled {
		t.Errorf("%v, %v", v, err)
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left in TMPDIR: %v", left)
	}
	client, err := hasp.Open(t.Context(), c.Store)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for name, err := range client.Names(t.Context(), "") {
		t.Errorf("in use: %v, %v", name, err)
	}
}

// A worker that cannot begin ends the run, in its own words.
func TestWorkerThatCannotBegin(t *testing.T) {
	c := config(t, "worker")
	c.Worker = []string{"/bin/sh", "-c", "echo the disk is full >&2; exit 1"}
	if v, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("%v, %v", v, err)
	}
}
