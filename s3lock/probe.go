package s3lock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"

	"github.com/minio/minio-go/v7"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// probeKey is the object that conditions are tried on, one for each prefix, and begins those that a
// refused store leaves: they stay, as nothing is ever deleted. No name is encoded like that: a hash
// has no capitals.
const probeKey = "~PROBE"

// atOnce is how many writes of the probe race.
const atOnce = 4

// probed is the body of a probe's object. Creates says that writes which create an object at the
// same time were seen to exclude each other: that cannot be tried on an object that is there. So one
// that a refused store has made does not have it, and the next who open the store try on a new key.
type probed struct {
	Format  int    `json:"hasp"` // 0: no record
	Nonce   string `json:"probe"`
	Creates bool   `json:"creates,omitempty"`
}

// probe tries whether the store keeps to its conditions. Some answer 200 to all who create one
// object at the same time, or ignore If-Match: there two clients would hold one lock, so they are
// refused by what they did. Other clients may probe at the same time, so that none of our writes
// need succeed; that two do proves the fault.
func (s *store) probe(ctx context.Context) error {
	if err := s.locate(ctx); err != nil {
		return err
	}
	key := s.prefix + probeKey
	created, err := s.race(ctx, key, caslock.Absent, false)
	if err != nil || created > 1 {
		return errorOr(err, s.ignores("If-None-Match: * on PUT", created))
	}
	last, v, err := s.lastProbe(ctx, key)
	if err != nil {
		return err
	}
	creates := last.Creates || created == 1
	if !creates {
		created, err = s.race(ctx, key+"-"+nonce(), caslock.Absent, false)
		if err != nil || created > 1 {
			return errorOr(err, s.ignores("If-None-Match: * on PUT", created))
		}
		creates = created == 1
	}
	if again, err := s.race(ctx, key, caslock.Absent, false); err != nil || again > 0 {
		return errorOr(err, s.ignores("If-None-Match: * on PUT of an object that exists", again))
	}
	if replaced, err := s.race(ctx, key, v, creates); err != nil || replaced > 1 {
		return errorOr(err, s.ignores("If-Match on PUT", replaced))
	}
	// v is gone, by one of our writes or by another client's.
	if stale, err := s.race(ctx, key, v, creates); err != nil || stale > 0 {
		return errorOr(err, s.ignores("If-Match on PUT with an old ETag", stale))
	}
	return nil
}

func nonce() string { return strconv.FormatUint(rand.Uint64(), 36) }

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
func (s *store) race(ctx context.Context, key string, old caslock.Version, creates bool) (n int, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			body, failed := json.Marshal(probed{Nonce: nonce(), Creates: creates})
			if failed == nil {
				_, failed = s.put(ctx, key, body, old)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failed == nil:
				n++
			case !errors.Is(failed, caslock.ErrConflict):
				err = failed
			}
		})
	}
	all.Wait()
	return n, err
}

// lastProbe reads what the last probe has left.
func (s *store) lastProbe(ctx context.Context, key string) (last probed, v caslock.Version, err error) {
	body, info, _, err := s.core.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return last, caslock.Absent, s.explain(ctx, err)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, longestRecord))
	if err != nil {
		return last, caslock.Absent, s.explain(ctx, err)
	}
	if json.Unmarshal(text, &last) != nil {
		last = probed{} // another's bytes prove nothing
	}
	return last, caslock.Version(info.ETag), nil
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
