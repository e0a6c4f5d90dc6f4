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

// File is a file that is replaced under a lock's tokens. Its methods may be called at once
// from many goroutines and processes.
type File struct {
	// Wait bounds how long Advance and Replace wait for their turn, besides their context; after
	// that they fail with ErrBlocked. Set it before the first use. Default: Patience.
	Wait time.Duration

	path string // without symbolic links
	name string // of the lock

	// durable is the greatest token that this File itself has synced to the disk.
	durable atomic.Uint64
}

// Patience is how long a caller waits for its turn if File.Wait is not set. A turn takes a few
// synced writes; the bound allows for a slow disk and many waiters.
const Patience = 30 * time.Second

// ErrBlocked: another process has kept the sidecar locked for longer than File.Wait. It was stopped
// in the middle, or does not belong to hasp. Nothing was written.
var ErrBlocked = errors.New("the fence is locked by another process")

// Open returns the file that a lock protects. Neither it nor its sidecar needs to be there
// yet, but its directory does.
func Open(path, name string) (*File, error) {
	if err := fencing.Check(name, 1); err != nil { // the name's rule; there is no token yet
		return nil, err
	}
	if path == "" {
		return nil, fmt.Errorf("%w: the path of the file is empty", fencing.ErrInvalid)
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		// The file does not exist yet; then at least its directory has a single name. A dangling
		// link is refused, since replacing it would remove the link.
		if _, dangling := os.Lstat(path); dangling == nil {
			return nil, fmt.Errorf("%w: %s is a symbolic link to a file that does not exist", fencing.ErrInvalid, path)
		}
		real, err = filepath.EvalSymlinks(filepath.Dir(path))
		real = filepath.Join(real, filepath.Base(path))
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(real); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", fencing.ErrInvalid, real)
	}
	if err := checkFS(filepath.Dir(real)); err != nil {
		return nil, err
	}
	return &File{path: real, name: name}, nil
}

// Sidecar returns the path of the file that keeps the greatest token.
func (f *File) Sidecar() string { return f.hidden("fence") }

func (f *File) hidden(suffix string) string {
	return filepath.Join(filepath.Dir(f.path), "."+filepath.Base(f.path)+"."+suffix)
}

// Advance makes the fence refuse every smaller token from now on. It returns a *fencing.StaleError
// if the fence has seen a greater token.
func (f *File) Advance(ctx context.Context, token uint64) error {
	return f.under(ctx, token, func() error { return nil })
}

// Replace replaces the file's content by all that it reads from r, unless the fence has seen a
// greater token: then it returns a *fencing.StaleError and the file is unchanged. If reading fails,
// the file is unchanged, too; a reader that ends early without an error replaces the file by the
// part that it gave.
//
// It compares before it reads, so that a stale writer is told at once, and again before it
// replaces, since reading may take long; that is when the token counts.
func (f *File) Replace(ctx context.Context, token uint64, r io.Reader) error {
	if err := f.Advance(ctx, token); err != nil {
		return err
	}
	temp, err := f.temporary(ctx, r)
	if err != nil {
		return err
	}
	defer os.Remove(temp) // it is absent after success
	return f.under(ctx, token, func() error {
		if err := os.Rename(temp, f.path); err != nil {
			return err
		}
		return syncDir(filepath.Dir(f.path))
	})
}

// temporary writes and syncs the new content. The content reaches the disk before its name does: a
// name that survives a power loss without its content would be an empty file.
func (f *File) temporary(ctx context.Context, r io.Reader) (path string, err error) {
	mode := fs.FileMode(0o666) // less the umask, as for any new file
	info, err := os.Stat(f.path)
	if err == nil {
		mode = info.Mode().Perm()
	}
	t, err := create(f.hidden, mode)
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

// under runs do while no other process can compare, if token may pass.
func (f *File) under(ctx context.Context, token uint64, do func() error) error {
	if err := fencing.Check(f.name, token); err != nil {
		return err
	}
	patience := f.Wait
	if patience == 0 {
		patience = Patience
	}
	s, err := openSidecar(ctx, f.Sidecar(), patience)
	if err != nil {
		return fmt.Errorf("fence %s: %w", f.path, err)
	}
	defer s.close()
	if err := s.raise(f.name, token, f.durable.Load()); err != nil {
		if errors.Is(err, fencing.ErrStale) {
			return err
		}
		return fmt.Errorf("fence %s: %w", f.path, err)
	}
	f.durable.Store(token) // no other goroutine of this process is here: s has the flock
	return do()
}
