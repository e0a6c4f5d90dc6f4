package s3lock

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// probeKey is the object that keeps what a probe has found, one for each prefix, and begins the keys
// that conditions are tried on. No name is encoded like that: a hash has no capitals.
const probeKey = "~PROBE"

// probeFormat is that of the probe. Another one is run anew.
const probeFormat = 2

// What a probe does. Of writes that a gateway lets through two at a time now and then, sixteen at
// once show it in half of the rounds; so do reads beside them that mix two writes.
const (
	writers = 16
	readers = 4
	chained = 16 // one after another
	rounds  = 8  // at the same time, on different keys: some stores take one write a second and key
)

// probed is the body of the probe's object.
type probed struct {
	Format int    `json:"hasp"` // 0: no record
	Nonce  string `json:"probe"`
	Passed int    `json:"passed,omitempty"` // the format of the probe that the store has passed
	MD5    bool   `json:"md5,omitempty"`    // an ETag is the MD5 of the body
}

// probe tries whether the store keeps to its conditions, and whether a read has the body and the
// ETag of one write. Some answer 200 to several that create one object at the same time, or ignore
// If-Match: there two clients would hold one lock. They are refused by what they did.
//
// The whole probe runs once for a prefix. Who opens it later reads that it was passed, and makes two
// writes that must be refused: whether something stands between by now that ignores conditions.
func (s *store) probe(ctx context.Context) error {
	if err := s.locate(ctx); err != nil {
		return err
	}
	last, v, err := s.lastProbe(ctx)
	if err != nil {
		return err
	}
	if last.Passed == probeFormat {
		s.md5 = last.MD5
		return s.tryRefusals(ctx)
	}
	if last, err = s.wholeProbe(ctx); err != nil {
		return err
	}
	s.md5 = last.MD5
	return s.remember(ctx, last, v)
}

// tryRefusals makes a write for each condition that does not hold.
func (s *store) tryRefusals(ctx context.Context) error {
	for what, old := range map[string]caslock.Version{
		"If-None-Match: * on PUT of an object that exists": caslock.Absent,
		"If-Match on PUT with another ETag":                caslock.Version(sum([]byte(nonce()))),
	} {
		// What would be written says that nothing was passed.
		_, err := patiently(ctx, func() (caslock.Version, error) {
			return s.put(ctx, s.prefix+probeKey, probed{Nonce: nonce()}.encode(), old)
		})
		if err == nil {
			return s.ignores(what, 1, 1)
		}
		if !errors.Is(err, caslock.ErrConflict) {
			return err
		}
	}
	return nil
}

// remember keeps that the store has passed. Who was quicker has found the same.
func (s *store) remember(ctx context.Context, last probed, v caslock.Version) error {
	_, err := patiently(ctx, func() (caslock.Version, error) { return s.put(ctx, s.prefix+probeKey, last.encode(), v) })
	if errors.Is(err, caslock.ErrConflict) {
		return nil
	}
	return err
}

// wholeProbe runs all rounds.
func (s *store) wholeProbe(ctx context.Context) (probed, error) {
	p := &probe{store: s, etags: map[string]caslock.Version{}, md5: true}
	failed := make([]error, rounds)
	var all sync.WaitGroup
	for i := range failed {
		all.Go(func() { failed[i] = p.round(ctx) })
	}
	all.Wait()
	if p.mixed || p.md5 && p.notMD5 {
		return probed{}, fmt.Errorf("%w: %s: the store answers with the body of one write and the ETag of another when it is read while it is written; "+
			"two clients would hold one lock there (docs/backends/s3.md has stores that do not)", driver.ErrInvalid, s)
	}
	if err := first(failed); err != nil {
		return probed{}, err
	}
	return probed{Nonce: nonce(), Passed: probeFormat, MD5: p.md5}, nil
}

func first(all []error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// probe has the observations of one whole probe.
type probe struct {
	*store
	mu     sync.Mutex
	etags  map[string]caslock.Version // of each body, by its nonce
	mixed  bool                       // a body was seen with two of them
	md5    bool                       // the ETag of each write was the MD5 of its body
	notMD5 bool                       // that of a read was not
}

// round has writers race to create an object, then to replace it, and then to replace what is not
// there any more. The key is new, so that one write must win, and not at most one: a store that
// refuses all would leave a free lock free for ever.
func (p *probe) round(ctx context.Context) error {
	key := p.prefix + probeKey + "-" + nonce()
	// To remove it is a courtesy, for which there may be no right. No lock has ever been under it.
	defer p.core.RemoveObject(context.WithoutCancel(ctx), p.bucket, key, minio.RemoveObjectOptions{})
	created, err := p.race(ctx, key, "If-None-Match: * on PUT", caslock.Absent, 1)
	if err != nil {
		return err
	}
	replaced, err := p.race(ctx, key, "If-Match on PUT", created, 1)
	if err != nil {
		return err
	}
	if err := p.chain(ctx, key, replaced); err != nil {
		return err
	}
	_, err = p.race(ctx, key, "If-Match on PUT with an old ETag", created, 0)
	return err
}

// race sends writes on the same condition at the same time, each with another body, reads beside
// them, and returns the version of the write that has won. want is how many must.
//
// 429 and 503 count as lost. If none has won, one of these writes may have been done all the same,
// or the store takes no more writes of one key in a second: then what is there is read, and the race
// is run again.
func (p *probe) race(ctx context.Context, key, what string, old caslock.Version, want int) (caslock.Version, error) {
	ours := map[string]bool{}
	for try := range 5 {
		won, refused, err := p.writeAtOnce(ctx, key, old, ours)
		switch {
		case err != nil:
			return caslock.Absent, err
		case len(won) > want:
			return caslock.Absent, p.ignores(what, len(won), writers)
		case want == 0 && refused > 0:
			return caslock.Absent, nil
		case len(won) == 1:
			return won[0], nil
		}
		if refused == writers && try > 0 { // and none for too many requests
			return caslock.Absent, p.refusesAll(what)
		}
		if !sleep(ctx, time.Second+rand.N(time.Second/2)) {
			return caslock.Absent, ctx.Err()
		}
		if last, v, err := p.read(ctx, key); err == nil && ours[last.Nonce] && want == 1 {
			return v, nil
		}
	}
	if want == 0 {
		return caslock.Absent, fmt.Errorf("%s: the store takes too few writes for its probe at the moment: open it again", p.store)
	}
	return caslock.Absent, p.refusesAll(what)
}

func (p *probe) refusesAll(what string) error {
	return fmt.Errorf("%w: %s: of %d writes with %s at the same time on a new object none succeeds, so that no client would have a free lock; "+
		"a proxy that compresses, or changes ETags, does that (docs/backends/s3.md)", driver.ErrInvalid, p.store, writers, what)
}

// writeAtOnce is one such race. refused is how many were told that the condition does not hold.
func (p *probe) writeAtOnce(ctx context.Context, key string, old caslock.Version, ours map[string]bool) (won []caslock.Version, refused int, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	defer p.readBeside(ctx, key)()
	for range writers {
		body := probed{Nonce: nonce()}
		ours[body.Nonce] = true
		all.Go(func() {
			v, failed := p.put(ctx, key, body.encode(), old)
			if failed == nil {
				p.noteWrite(body, v)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failed == nil:
				won = append(won, v)
			case errors.Is(failed, caslock.ErrConflict):
				refused++
			case !errors.Is(failed, errTooMany):
				err = failed
			}
		})
	}
	all.Wait()
	return won, refused, err
}

// chain writes one after another, for a second at most, to be read meanwhile. What it says of conditions the
// races have shown.
func (p *probe) chain(ctx context.Context, key string, v caslock.Version) error {
	defer p.readBeside(ctx, key)()
	end := time.Now().Add(time.Second)
	for range chained {
		body := probed{Nonce: nonce()}
		next, err := p.put(ctx, key, body.encode(), v)
		if err != nil {
			return ctx.Err() // too many requests, perhaps: it has seen what it could
		}
		p.noteWrite(body, next)
		if v = next; time.Now().After(end) {
			break
		}
	}
	return nil
}

// readBeside reads the object all the time, until it is told to stop.
func (p *probe) readBeside(ctx context.Context, key string) (stop func()) {
	over := make(chan struct{})
	var reading sync.WaitGroup
	for range readers {
		reading.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					p.read(ctx, key) // it notes what it has seen; a failure is not of interest here
					sleep(ctx, time.Millisecond)
				}
			}
		})
	}
	return func() {
		close(over)
		reading.Wait()
	}
}

// read reads an object of the probe's.
func (p *probe) read(ctx context.Context, key string) (last probed, v caslock.Version, err error) {
	text, v, _, err := p.get(ctx, key)
	if err != nil || v == caslock.Absent {
		return last, v, err
	}
	if err := json.Unmarshal(text, &last); err != nil {
		return probed{}, v, nil // another's
	}
	p.noteRead(last, text, v)
	return last, v, nil
}

// noteWrite, and noteRead, compare a body and its ETag, as an answer had them, with those that were
// seen before.
func (p *probe) noteWrite(body probed, etag caslock.Version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(body, etag)
	p.md5 = p.md5 && string(etag) == sum(body.encode())
}

func (p *probe) noteRead(body probed, text []byte, etag caslock.Version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(body, etag)
	p.notMD5 = p.notMD5 || string(etag) != sum(text)
}

func (p *probe) noteLocked(body probed, etag caslock.Version) {
	before, known := p.etags[body.Nonce]
	p.mixed = p.mixed || known && before != etag
	p.etags[body.Nonce] = etag
}

func sum(text []byte) string {
	h := md5.Sum(text)
	return hex.EncodeToString(h[:])
}

func (p probed) encode() []byte {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // of strings and numbers
	}
	return text
}

func nonce() string { return strconv.FormatUint(rand.Uint64(), 36) }

func (s *store) ignores(what string, n, of int) error {
	return fmt.Errorf("%w: %s: the store does not honour %s: %d writes of %d succeeded at the same time; "+
		"two clients would hold one lock there (docs/backends/s3.md has stores that do)", driver.ErrInvalid, s, what, n, of)
}

// lastProbe reads what the last probe has left.
func (s *store) lastProbe(ctx context.Context) (last probed, v caslock.Version, err error) {
	var text []byte
	v, err = patiently(ctx, func() (caslock.Version, error) {
		var v caslock.Version
		text, v, _, err = s.get(ctx, s.prefix+probeKey)
		return v, err
	})
	if err == nil && json.Unmarshal(text, &last) != nil {
		last = probed{} // another's bytes prove nothing
	}
	return last, v, err
}

// patiently repeats a request that the store has refused because there are too many. Such a write
// may have been done all the same, and finds itself then: that is a conflict, and what is written
// here may be there already.
func patiently(ctx context.Context, do func() (caslock.Version, error)) (caslock.Version, error) {
	pause := 200 * time.Millisecond
	for {
		v, err := do()
		if !errors.Is(err, errTooMany) || pause > 2*time.Second || !sleep(ctx, pause/2+rand.N(pause)) {
			return v, err
		}
		pause *= 2
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
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
