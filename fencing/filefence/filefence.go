package filefence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/fencing"
)

// Options are the settings of a Writer. nil or the zero value means the defaults.
type Options struct {
	// Wait bounds how long With and Replace wait for their turn, besides their context; after that
	// they fail with ErrBlocked. Default: Patience.
	Wait time.Duration
}

// Writer replaces a file under one token. Its methods may be called at once from many goroutines,
// and other Writers of the file may be in any process.
type Writer struct {
	path  string // without symbolic links
	wait  time.Duration
	name  string // of the lock
	token uint64

	// durable says that this Writer itself has synced the token to the disk.
	durable atomic.Bool
}

// Patience is how long a caller waits for its turn if Options.Wait is not set. A turn takes a few
// synced writes; the bound allows for a slow disk and many waiters.
const Patience = 30 * time.Second

// ErrBlocked: another process has kept the sidecar locked for longer than Options.Wait. It was stopped
// in the middle, or does not belong to hasp. Nothing was written.
var ErrBlocked = errors.New("the fence is locked by another process")

// With makes the fence of the file that the lock protects refuse every token smaller than the
// lease's from now on, and returns the Writer of this token. Neither the file nor its sidecar needs to be
// there yet, but its directory does. It returns a *fencing.StaleError if the fence has seen a
// greater token.
func With(ctx context.Context, path string, lease fencing.Grant, o *Options) (*Writer, error) {
	w := &Writer{wait: Patience, name: lease.Name(), token: lease.Token()}
	if o != nil && o.Wait != 0 {
		w.wait = o.Wait
	}
	if err := fencing.Check(w.name, w.token); err != nil {
		return nil, err
	}
	var err error
	if w.path, err = resolve(path); err != nil {
		return nil, err
	}
	if err := w.advance(ctx); err != nil {
		return nil, err
	}
	return w, nil
}

// resolve returns the one path of a file that can be fenced.
func resolve(path string) (string, error) {
	if path == "" {
		return "", fmt.Errorf("%w: the path of the file is empty", fencing.ErrInvalid)
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		// The file does not exist yet; then at least its directory has a single name. A dangling
		// link is refused, since replacing it would remove the link.
		if _, dangling := os.Lstat(path); dangling == nil {
			return "", fmt.Errorf("%w: %s is a symbolic link to a file that does not exist", fencing.ErrInvalid, path)
		}
		real, err = filepath.EvalSymlinks(filepath.Dir(path))
		real = filepath.Join(real, filepath.Base(path))
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(real); err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("%w: %s is not a regular file", fencing.ErrInvalid, real)
	}
	if err := checkFS(filepath.Dir(real)); err != nil {
		return "", err
	}
	return real, nil
}

// Sidecar returns the path of the file that keeps the greatest token.
func (w *Writer) Sidecar() string { return w.hidden("fence") }

func (w *Writer) hidden(suffix string) string {
	return filepath.Join(filepath.Dir(w.path), "."+filepath.Base(w.path)+"."+suffix)
}

// advance compares and raises, and writes nothing else.
func (w *Writer) advance(ctx context.Context) error {
	return w.under(ctx, func() error { return nil })
}

// Replace replaces the file's content by all that it reads from r, unless the fence has seen a
// greater token: then it returns a *fencing.StaleError and the file is unchanged. If reading fails,
// the file is unchanged, too; a reader that ends early without an error replaces the file by the
// part that it gave.
//
// It compares before it reads, so that a stale writer is told at once, and again before it
// replaces, since reading may take long; that is when the token counts.
func (w *Writer) Replace(ctx context.Context, r io.Reader) error {
	if err := w.advance(ctx); err != nil {
		return err
	}
	temp, err := w.temporary(ctx, r)
	if err != nil {
		return err
	}
	defer os.Remove(temp) // it is absent after success
	return w.under(ctx, func() error {
		if err := os.Rename(temp, w.path); err != nil {
			return err
		}
		return syncDir(filepath.Dir(w.path))
	})
}

// temporary writes and syncs the new content. The content reaches the disk before its name does: a
// name that survives a power loss without its content would be an empty file.
func (w *Writer) temporary(ctx context.Context, r io.Reader) (path string, err error) {
	mode := fs.FileMode(0o666) // less the umask, as for any new file
	info, err := os.Stat(w.path)
	if err == nil {
		mode = info.Mode().Perm()
	}
	t, err := create(w.hidden, mode)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.Remove(t.Name())
		}
	}()
	defer t.Close() // only the error of Sync matters
	if info != nil {
		if err := t.Chmod(mode); err != nil { // the bits that the umask removed
			return "", err
		}
	}
	if _, err := io.Copy(t, &reader{ctx, r}); err != nil {
		return "", err
	}
	if err := t.Sync(); err != nil {
		return "", fmt.Errorf("sync %s: %w", t.Name(), err)
	}
	return t.Name(), nil
}

// reader ends with its context, between two reads.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// under runs do while no other process can compare, if the token may pass.
func (w *Writer) under(ctx context.Context, do func() error) error {
	s, err := openSidecar(ctx, w.Sidecar(), w.wait)
	if err != nil {
		return fmt.Errorf("fence %s: %w", w.path, err)
	}
	defer s.close()
	if err := s.raise(w.name, w.token, w.durable.Load()); err != nil {
		if errors.Is(err, fencing.ErrStale) {
			return err
		}
		return fmt.Errorf("fence %s: %w", w.path, err)
	}
	w.durable.Store(true) // no other goroutine of this process is here: s has the flock
	return do()
}
