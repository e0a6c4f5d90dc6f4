package cli

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/hasptest"
)

// cut:///DIR is a store whose locks expire and can be lost: the in-memory one of this process, with
// a network that fails as files in DIR say. While DIR/cut exists no renewal gets through; when
// DIR/evict appears an operator removes all entries; while DIR/refuse exists its disk is full, and
// DIR/refusing says that it is. Real stores that expire have other scripts.
func init() {
	driver.Register("cut", func(_ context.Context, u *url.URL) (driver.Backend, error) {
		store := hasptest.New()
		b := store.Backend()
		c := &cutStore{Backend: b, Watcher: b.(driver.Watcher), Namer: b.(driver.Namer), store: store, dir: filepath.Join("/", u.Host, u.Path)}
		c.refuse()
		go c.operate(b.(driver.Evicter))
		return c, nil
	})
}

type cutStore struct {
	driver.Backend
	driver.Watcher
	driver.Namer
	store *hasptest.Store
	dir   string
}

func (c *cutStore) String() string { return "cut://" + c.dir }

func (c *cutStore) has(file string) bool {
	_, err := os.Stat(filepath.Join(c.dir, file))
	return err == nil
}

func (c *cutStore) refuse() {
	said := filepath.Join(c.dir, "refusing")
	if c.has("refuse") {
		c.store.Refuse("", errors.New("disk full"))
		_ = os.WriteFile(said, nil, 0o600)
	} else if c.has("refusing") {
		c.store.Refuse("", nil)
		_ = os.Remove(said)
	}
}

func (c *cutStore) operate(e driver.Evicter) {
	for ctx := context.Background(); ; time.Sleep(10 * time.Millisecond) {
		c.refuse()
		if !c.has("evict") {
			continue
		}
		_ = c.Names(ctx, "", func(name string) bool {
			entries, _ := c.List(ctx, name, 0)
			for _, entry := range entries {
				_ = e.Evict(ctx, name, entry.ID, "")
			}
			return true
		})
	}
}

func (c *cutStore) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := c.Backend.Open(ctx, o)
	return &cutSession{s, c}, granted, err
}

type cutSession struct {
	driver.Session
	store *cutStore
}

func (s *cutSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if s.store.has("cut") {
		_ = os.WriteFile(filepath.Join(s.store.dir, "refused"), []byte("x"), 0o644) // for scripts that cannot read it anywhere
		return 0, errors.New("network is unreachable")
	}
	return s.Session.KeepAlive(ctx)
}
