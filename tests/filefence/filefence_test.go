//go:build unix

package filefence_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/filefence"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/fencetest"
	_ "github.com/hasplock/hasp/redislock"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		fmt.Fprintln(os.Stderr, replaceUntilKilled(path))
		os.Exit(1)
	}
	fencetest.Main(m, open)
}

// resource is a directory with a file for each name.
type resource struct{ dir string }

func open(_ context.Context, target string) (fencetest.Resource, error) {
	return resource{target}, os.MkdirAll(target, 0o700)
}

func (r resource) path(name string) string {
	encoded, _ := driver.EncodeName(name, 200)
	return filepath.Join(r.dir, "cell-"+encoded)
}

func (r resource) with(ctx context.Context, name string, token uint64) (*filefence.Writer, error) {
	return filefence.With(ctx, r.path(name), fencing.GrantOf(name, token), nil)
}

func (r resource) Advance(ctx context.Context, name string, token uint64) error {
	_, err := r.with(ctx, name, token)
	return err
}

var writers fencetest.Writers[*filefence.Writer]

func (r resource) Write(ctx context.Context, name string, token uint64, value string) error {
	w, err := writers.Get(r.dir, name, token, func() (*filefence.Writer, error) { return r.with(ctx, name, token) })
	if err != nil {
		return err
	}
	return w.Replace(ctx, strings.NewReader(value))
}

func (r resource) Overwrite(_ context.Context, name, value string) error {
	temp := r.path(name) + rand.Text()
	if err := os.WriteFile(temp, []byte(value), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, r.path(name))
}

func (r resource) Read(_ context.Context, name string) (string, error) {
	b, err := os.ReadFile(r.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

func TestRule(t *testing.T) { fencetest.Rule(t, open, t.TempDir()) }

func TestPaused(t *testing.T) {
	fencetest.Paused(t, open, backends.SharedRedis(t).URL(), t.TempDir())
}

func TestLoad(t *testing.T) { fencetest.Load(t, open, t.TempDir(), t.TempDir()) }

// sidecar is the path of a file's sidecar, also of one that no Writer has made yet.
func sidecar(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".fence")
}

// advance has the fence of a file see a token of the lock "nightly".
func advance(ctx context.Context, path string, token uint64) error {
	_, err := filefence.With(ctx, path, fencing.GrantOf("nightly", token), nil)
	return err
}

// with advances, and returns what must be there.
func with(t testing.TB, path string, token uint64, o *filefence.Options) *filefence.Writer {
	t.Helper()
	w, err := filefence.With(t.Context(), path, fencing.GrantOf("nightly", token), o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// file is a path where nothing is yet.
func file(t *testing.T) string { return filepath.Join(t.TempDir(), "report.txt") }

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A greater token that comes while the content is being read wins.
func TestStaleWhileReading(t *testing.T) {
	path := file(t)
	seventh := with(t, path, 7, nil)
	if err := seventh.Replace(t.Context(), strings.NewReader("before")); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- seventh.Replace(t.Context(), r) }()
	if _, err := w.Write([]byte("half of a report")); err != nil { // it reads, so it has compared once
		t.Fatal(err)
	}
	if err := with(t, path, 8, nil).Replace(t.Context(), strings.NewReader("newer")); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := <-done; !errors.Is(err, fencing.ErrStale) {
		t.Errorf("got %v", err)
	}
	if got := content(t, path); got != "newer" {
		t.Errorf("the file is %q", got)
	}
	onlyTheFile(t, path)
}

// onlyTheFile fails if anything is left beside the file and its sidecar.
func onlyTheFile(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(path) && e.Name() != filepath.Base(sidecar(path)) {
			t.Errorf("%s is left behind", e.Name())
		}
	}
}

// What cannot be read to its end replaces nothing; and neither does a context that ends.
func TestReaderFails(t *testing.T) {
	path := file(t)
	w := with(t, path, 7, nil)
	if err := w.Replace(t.Context(), strings.NewReader("before")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken pipe or so")
	if err := w.Replace(t.Context(), io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	endless := readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
	if err := w.Replace(ctx, endless); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := content(t, path); got != "before" {
		t.Errorf("the file is %q", got)
	}
	onlyTheFile(t, path)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Waiting for another writer's flock ends with the context.
func TestContextEndsWaiting(t *testing.T) {
	path := file(t)
	if err := advance(t.Context(), path, 7); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(sidecar(path))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := advance(ctx, path, 8); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := advance(t.Context(), path, 8); err != nil {
		t.Errorf("after the other was done: %v", err)
	}
}

// After any torn write of the sidecar the greatest token that has passed is still known, or no
// token had passed.
func TestTornSidecar(t *testing.T) {
	path := file(t)
	var after [3][]byte // states of the sidecar, from none to two tokens
	for i, token := range []uint64{0, 7, 8} {
		if token != 0 {
			if err := advance(t.Context(), path, token); err != nil {
				t.Fatal(err)
			}
			after[i] = []byte(content(t, sidecar(path)))
		}
	}
	try := func(what string, b []byte, least uint64) {
		t.Helper()
		if err := os.WriteFile(sidecar(path), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := advance(t.Context(), path, 9); err != nil {
			t.Errorf("%s: the newest is refused: %v", what, err)
		}
		if err := os.WriteFile(sidecar(path), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := advance(t.Context(), path, least-1); least > 1 && !errors.Is(err, fencing.ErrStale) {
			t.Errorf("%s: token %d may pass: %v", what, least-1, err)
		}
	}
	for _, n := range []int{0, 1, 20, 4096, 4097, 4110, 8000} {
		try("first write torn", after[1][:min(n, len(after[1]))], 1)
	}
	for _, n := range []int{0, 1, 10, 12, 20} { // of the second write, to the first slot
		torn := append([]byte(nil), after[1]...)
		copy(torn[:n], after[2])
		try("second write torn", torn, 7)
	}
	try("second write done", after[2], 8)
	// What is no sidecar is not taken for one that has seen nothing.
	for what, b := range map[string][]byte{"text": []byte("something else"), "long": make([]byte, 100_000)} {
		if err := os.WriteFile(sidecar(path), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := advance(t.Context(), path, 9); err == nil || errors.Is(err, fencing.ErrStale) {
			t.Errorf("%s is taken for a sidecar: %v", what, err)
		}
	}
}

// One file, two locks: tokens that cannot be compared.
func TestOtherLock(t *testing.T) {
	path := file(t)
	if err := advance(t.Context(), path, 7); err != nil {
		t.Fatal(err)
	}
	if _, err := filefence.With(t.Context(), path, fencing.GrantOf("weekly", 99), nil); !errors.Is(err, fencing.ErrInvalid) || !strings.Contains(err.Error(), "nightly") {
		t.Errorf("got %v", err)
	}
}

func TestPaths(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	if err := os.WriteFile(real, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	w := with(t, link, 7, nil)
	if err := w.Replace(t.Context(), strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(link); err != nil || to != "real" {
		t.Errorf("the link was replaced: %q, %v", to, err)
	}
	if got := content(t, real); got != "new" {
		t.Errorf("the file is %q", got)
	}
	if info, err := os.Stat(real); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	if want := filepath.Join(dir, ".real.fence"); w.Sidecar() != want {
		t.Errorf("the sidecar is %s, want %s", w.Sidecar(), want)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", dir, dangling, filepath.Join(dir, "no/such/dir")} {
		if err := advance(t.Context(), path, 1); err == nil {
			t.Errorf("%q can be fenced", path)
		}
	}
	if err := os.Symlink("real", filepath.Join(dir, ".trap.fence")); err != nil {
		t.Fatal(err)
	}
	if err := advance(t.Context(), filepath.Join(dir, "trap"), 1); err == nil {
		t.Error("a sidecar that is a link is followed")
	}
}

func BenchmarkReplace(b *testing.B) {
	path := filepath.Join(b.TempDir(), "f")
	b.Run("unfenced", func(b *testing.B) { // as safely: temporary file, two syncs, rename
		for b.Loop() {
			if err := replace(path, "v"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("fenced", func(b *testing.B) {
		w := with(b, path, 7, nil)
		for b.Loop() {
			if err := w.Replace(b.Context(), strings.NewReader("v")); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func replace(path, value string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "")
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, value)
	err = errors.Join(err, f.Sync(), f.Close(), os.Rename(f.Name(), path))
	d, openErr := os.Open(filepath.Dir(path))
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	return errors.Join(err, d.Sync(), d.Close())
}
