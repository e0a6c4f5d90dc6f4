package filelock

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"strconv"

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

	// Mode says for whom the store's directory is made: 0o700 for one user, 0o770 for the members
	// of Group, 0o1777 for every user of the machine, which only root can make. It holds under
	// every umask. A directory that exists must have this mode (and setgid, 02770, if it is a
	// group's), and is never changed. Default: 0o700 for a new one; for one that exists, what it
	// has.
	Mode uint32

	// Group is the group that shares the store, by name or number. Default: the process's own.
	Group string
}

// New opens the store in a directory, and makes it, readable by its owner only, if there is none.
// The directory must be the process's own, or shared (Options.Mode), and used for nothing else.
// Root may look at the store of another user (list, watch, diagnose), and makes and changes nothing
// there.
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

// Open connects to the store that a URL names; docs/backends/file.md has its parameters. ctx bounds
// the connecting only. It is for programs that want the backend itself: hasp.Open makes a client,
// and takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "file")
}

// openURL reads file:///absolute/dir. Its parameters are allow_fuse, mode (octal, as of chmod) and
// group.
func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	if u.Host != "" && u.Host != "localhost" || u.User != nil || u.Opaque != "" || !filepath.IsAbs(filepath.FromSlash(u.Path)) {
		return nil, fmt.Errorf("%w: a file URL has an absolute path and nothing before it: file:///var/lib/hasp", driver.ErrInvalid)
	}
	p := driver.NewParams(u.Query())
	o := &Options{AllowFUSE: p.Bool("allow_fuse", false)}
	mode, err := strconv.ParseUint(p.String("mode", "0"), 8, 16)
	if err != nil || mode == 0 && p.Has("mode") {
		mode = math.MaxUint32 // refused as any other unknown one
	}
	o.Mode, o.Group = uint32(mode), p.String("group", "")
	if p.Has("group") && o.Group == "" {
		return nil, fmt.Errorf("%w: parameter \"group\" is empty", driver.ErrInvalid)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	return New(ctx, filepath.FromSlash(u.Path), o)
}
