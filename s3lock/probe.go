package s3lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"

	"github.com/minio/minio-go/v7"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// probeKey is the object that conditions are tried on, one for each prefix: it stays, as nothing is
// ever deleted. No name is encoded like that: a hash has no capitals.
const probeKey = "~PROBE"

// atOnce is how many writes of the probe race.
const atOnce = 4

// probe tries whether the store keeps to its conditions. Some answer 200 to all who create one
// object at the same time, or ignore If-Match: there two clients would hold one lock, so they are
// refused by what they did. Other clients may probe at the same time, so that none of our writes
// need succeed; that two do proves the fault.
func (s *store) probe(ctx context.Context) error {
	if err := s.locate(ctx); err != nil {
		return err
	}
	key := s.prefix + probeKey
	created, _, err := s.race(ctx, key, caslock.Absent)
	switch {
	case err != nil:
		return err
	case created > 1:
		return s.ignores("If-None-Match: * on PUT", created)
	}
	v, err := s.version(ctx, key)
	if err != nil {
		return err
	}
	if again, _, err := s.race(ctx, key, caslock.Absent); err != nil || again > 0 {
		return errorOr(err, s.ignores("If-None-Match: * on PUT of an object that exists", again))
	}
	replaced, _, err := s.race(ctx, key, v)
	switch {
	case err != nil:
		return err
	case replaced > 1:
		return s.ignores("If-Match on PUT", replaced)
	}
	// v is gone, by one of our writes or by another client's.
	if stale, _, err := s.race(ctx, key, v); err != nil || stale > 0 {
		return errorOr(err, s.ignores("If-Match on PUT with an old ETag", stale))
	}
	return nil
}

func errorOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

func (s *store) ignores(what string, n int) error {
	return fmt.Errorf("%w: %s: the store does not honour %s: %d writes of %d succeeded at the same time; "+
		"two clients would hold one lock there (docs/backends/s3.md has stores that do)", driver.ErrInvalid, s, what, n, atOnce)
}

// race sends some writes on the same condition at the same time, each with another body, and counts
// those that succeed.
func (s *store) race(ctx context.Context, key string, old caslock.Version) (n int, v caslock.Version, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			body := fmt.Appendf(nil, `{"hasp":0,"probe":"%x"}`, rand.Uint64())
			got, failed := s.put(ctx, key, body, old)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failed == nil:
				n, v = n+1, got
			case !errors.Is(failed, caslock.ErrConflict):
				err = failed
			}
		})
	}
	all.Wait()
	return n, v, err
}

func (s *store) version(ctx context.Context, key string) (caslock.Version, error) {
	body, info, _, err := s.core.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return caslock.Absent, s.explain(ctx, err)
	}
	body.Close()
	return caslock.Version(info.ETag), nil
}

// locate asks for the bucket's region once, where it is not known: the library would ask before
// some request later.
func (s *store) locate(ctx context.Context) error {
	_, err := s.core.GetBucketLocation(ctx, s.bucket)
	if status(err) == http.StatusForbidden {
		return nil // without that right the region has to be in the URL; the next request tells
	}
	if err != nil {
		return s.explain(ctx, err)
	}
	return nil
}
