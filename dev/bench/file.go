package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/internal/backends"
)

var fileStore = store{
	name: "file", quick: true,
	start: func(p *backends.Program) endpoint {
		dir, err := os.MkdirTemp("", "hasp-bench-")
		if err != nil {
			p.Fatal(err)
		}
		p.Cleanup(func() { os.RemoveAll(dir) })
		return endpoint{URL: "file://" + filepath.Join(dir, "store"), Addrs: []string{dir}}
	},
	contestants: func(e endpoint) []contestant {
		dir := e.Addrs[0]
		return []contestant{
			{name: "floor (flock)", role: floor, told: true, open: flockFloor(dir)},
			haspOn("hasp", e.URL),
			{name: "gofrs/flock", role: peer, open: gofrsFlock(dir)},
		}
	},
}

// flockFloor opens a file, locks it and closes it.
func flockFloor(dir string) func(context.Context) (client, error) {
	return func(context.Context) (client, error) {
		return client{
			lock: func(_ context.Context, name string) (func() error, error) {
				fd, err := unix.Open(filepath.Join(dir, "floor-"+name), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
				if err != nil {
					return nil, err
				}
				if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
					unix.Close(fd)
					return nil, err
				}
				return func() error { return unix.Close(fd) }, nil
			},
			close: func() {},
		}, nil
	}
}

// gofrsFlock waits by trying again, which its context's form is for; Lock would block a
// thread.
func gofrsFlock(dir string) func(context.Context) (client, error) {
	return func(context.Context) (client, error) {
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				l := flock.New(filepath.Join(dir, "peer-"+name))
				if _, err := l.TryLockContext(ctx, 10*time.Millisecond); err != nil {
					return nil, err
				}
				return l.Unlock, nil
			},
			close: func() {},
		}, nil
	}
}
