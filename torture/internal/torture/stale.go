//go:build unix

package torture

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"
)

// lockFile is the control where a store's locks cannot be lost by any fault of ours, as those of a
// file: the lock file with a time, as people write it by hand. It is taken by creating it; a
// process that finds it older than the TTL takes it over; its holder renews the time and never
// looks whose it is.
type lockFile struct {
	path string
	ttl  time.Duration
	stop func()
}

func takeLockFile(ctx context.Context, path string, ttl time.Duration) (*lockFile, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			_ = f.Close()
			break
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > ttl {
			_ = os.Remove(path) // perhaps somebody else's by now: that is a mistake found in the wild
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	quit := make(chan struct{})
	l := &lockFile{path: path, ttl: ttl, stop: sync.OnceFunc(func() { close(quit) })}
	go func() {
		tick := time.NewTicker(ttl / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				now := time.Now()
				_ = os.Chtimes(l.path, now, now)
			case <-quit:
				return
			}
		}
	}()
	return l, nil
}

func (*lockFile) Token() uint64            { return 0 }
func (*lockFile) Held() bool               { return true }
func (*lockFile) Context() context.Context { return context.Background() }

func (l *lockFile) Release(context.Context) error {
	l.stop()
	_ = os.Remove(l.path) // also if it is another's by now
	return nil
}
