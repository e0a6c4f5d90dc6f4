package filelock

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/hasplock/hasp/driver"
)

func init() {
	driver.Register("file", openURL)
}

// Options are the settings of a store. nil means the defaults.
type Options struct {
	// AllowFUSE accepts a directory on a FUSE file system. hasp cannot tell a local one
	// from a network one there; two machines that share it would both hold every lock.
	// Default: false.
	AllowFUSE bool
}

// New opens the store in a directory, and makes it, readable by its owner only, if there
// is none. The directory must be the process's own and used for nothing else.
//
// ctx bounds the opening. It can take long only if another process was stopped while it
// prepared the store. On systems without flock the error wraps driver.ErrUnsupported.
func New(ctx context.Context, dir string, o *Options) (driver.Backend, error) {
	if o == nil {
		o = &Options{}
	}
	if dir == "" {
		return nil, fmt.Errorf("%w: the store's directory is not given", driver.ErrInvalid)
	}
	path, err := filepath.Abs(dir) // the working directory may change later
	if err != nil {
		return nil, fmt.Errorf("store directory %s: %w", dir, err)
	}
	return open(ctx, path, o)
}

// Open connects to the store that a URL names; the package comment has its parameters. ctx bounds
// the connecting only. It is for programs that want the backend itself: hasp.Open makes a client,
// and takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "file")
}

// openURL reads file:///absolute/dir. Its parameter is allowfuse.
func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	if u.Host != "" && u.Host != "localhost" || u.User != nil || u.Opaque != "" || !filepath.IsAbs(filepath.FromSlash(u.Path)) {
		return nil, fmt.Errorf("%w: a file URL has an absolute path and nothing before it: file:///var/lib/hasp", driver.ErrInvalid)
	}
	p := driver.NewParams(u.Query())
	o := &Options{AllowFUSE: p.Bool("allowfuse", false)}
	if err := p.Err(); err != nil {
		return nil, err
	}
	return New(ctx, filepath.FromSlash(u.Path), o)
}
