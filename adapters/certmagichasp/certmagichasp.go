// Package certmagichasp gives github.com/caddyserver/certmagic a lock between machines, beside the
// storage that it already has:
//
//	certmagic.Default.Storage = certmagichasp.New(certmagic.Default.Storage, client)
//
// It is for storages that have no lock that several machines share: a bucket, a table, a network
// file system. Of many machines that need a certificate one asks for it.
//
// CertMagic has no way to learn that a lock was lost. After a loss two machines may ask for the
// same certificate at once: that costs one of the rate limit, and the later one stays stored.
package certmagichasp

import (
	"context"
	"errors"
	"fmt"

	"github.com/caddyserver/certmagic"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/adapters/internal/held"
)

// Storage is a certmagic.Storage with locks of hasp. Safe for use by many goroutines.
type Storage struct {
	certmagic.Storage
	client *hasp.Client
	opts   []hasp.LockOption
	held   held.Leases
}

var _ certmagic.TryLocker = (*Storage)(nil)

// New returns s with the locks of c. The lock of a key is "certmagic/" and the key.
func New(s certmagic.Storage, c *hasp.Client, opts ...hasp.LockOption) *Storage {
	return &Storage{Storage: s, client: c, opts: opts}
}

func (s *Storage) mutex(key string) *hasp.Mutex { return s.client.Mutex("certmagic/"+key, s.opts...) }

// Lock waits until this machine has the lock of key, or until ctx ends.
func (s *Storage) Lock(ctx context.Context, key string) error {
	lease, err := s.mutex(key).Lock(ctx)
	if err == nil {
		s.held.Put(key, lease)
	}
	return err
}

// TryLock reports whether it was free.
func (s *Storage) TryLock(ctx context.Context, key string) (bool, error) {
	lease, err := s.mutex(key).TryLock(ctx)
	if errors.Is(err, hasp.ErrBusy) {
		return false, nil
	}
	if err == nil {
		s.held.Put(key, lease)
	}
	return err == nil, err
}

// Unlock gives the lock back. A lock that was lost is nothing that could not be released.
func (s *Storage) Unlock(ctx context.Context, key string) error {
	lease := s.held.Take(key)
	if lease == nil {
		return fmt.Errorf("certmagichasp: Unlock(%q) without Lock", key)
	}
	if err := lease.Release(ctx); !errors.Is(err, hasp.ErrLost) {
		return err
	}
	return nil
}
