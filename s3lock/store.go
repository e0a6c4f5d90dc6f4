package s3lock

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// store is a bucket as caslock needs it. It deletes nothing: an absent object and one whose
// condition a late write could still meet are the same to S3.
type store struct {
	core           minio.Core
	bucket, prefix string
	closed         func() // ends the connections that are our own
	md5            bool   // an ETag is the MD5 of the body: so says the probe
}

func (s *store) String() string {
	return fmt.Sprintf("s3 %s/%s/%s", s.core.EndpointURL().Host, s.bucket, strings.TrimSuffix(s.prefix, "/"))
}

func (s *store) Close() error {
	s.closed()
	return nil
}

// longestKey leaves room for a prefix in the 1,024 bytes that a key may have.
const longestKey = 512

func (s *store) key(name string) string {
	encoded, _ := driver.EncodeName(name, longestKey)
	return s.prefix + encoded
}

// longestRecord bounds what is read of an object: a record has at most some 8 KB.
const longestRecord = 64 << 10

func (s *store) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	return s.loadKey(ctx, s.key(name))
}

// loadKey reads a record.
//
// Some gateways answer with the body of one write and the ETag of another if they are read while
// they are written. With such a pair two clients replace the same record, each on its own. So they
// are compared: by the ETag, where that is the body's MD5 (the probe has found out), else by the
// nonce, which stands in the object's metadata as well.
func (s *store) loadKey(ctx context.Context, key string) (caslock.Record, caslock.Version, error) {
	for try := range 5 {
		if try > 0 && !sleep(ctx, rand.N(50*time.Millisecond)<<try) {
			return caslock.Record{}, caslock.Absent, ctx.Err()
		}
		text, v, meta, err := s.get(ctx, key)
		if err != nil || v == caslock.Absent {
			return caslock.Record{}, v, err
		}
		if s.md5 && string(v) != sum(text) {
			continue
		}
		r, err := caslock.Decode(text)
		if err != nil {
			return r, caslock.Absent, fmt.Errorf("%w (object %q)", err, key)
		}
		if !s.md5 && meta != "" && meta != r.Nonce {
			continue
		}
		return r, v, nil
	}
	return caslock.Record{}, caslock.Absent, fmt.Errorf("%s: the store answers with the body of one write and the ETag of another (object %q): run hasp doctor", s, key)
}

// nonceKey is the metadata that has a record's nonce.
const nonceKey = "Hasp-Nonce"

// get reads an object, its ETag and the nonce of its metadata in one answer. One that is absent has
// the version Absent.
func (s *store) get(ctx context.Context, key string) (text []byte, v caslock.Version, meta string, err error) {
	o := minio.GetObjectOptions{}
	o.Set("Accept-Encoding", "identity") // a proxy that compresses weakens the ETag, or changes it
	body, info, header, err := s.core.GetObject(ctx, s.bucket, key, o)
	if answered(err, http.StatusNotFound) && minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return nil, caslock.Absent, "", nil
	}
	if err != nil {
		return nil, caslock.Absent, "", s.explain(ctx, err)
	}
	defer body.Close()
	if text, err = io.ReadAll(io.LimitReader(body, longestRecord)); err != nil {
		return nil, caslock.Absent, "", s.explain(ctx, err)
	}
	v, err = s.version(info.ETag)
	return text, v, header.Get("X-Amz-Meta-" + nonceKey), err
}

// version is an ETag that a condition can name.
func (s *store) version(etag string) (caslock.Version, error) {
	if etag == "" || strings.HasPrefix(etag, "W/") {
		return caslock.Absent, fmt.Errorf("%w: %s: the ETag %q is none that If-Match can name: a proxy between that compresses or changes answers makes them so", driver.ErrInvalid, s, etag)
	}
	return caslock.Version(etag), nil
}

func (s *store) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	text := r.Encode()
	var meta map[string]string
	if !s.md5 {
		meta = map[string]string{nonceKey: r.Nonce}
	}
	v, err := s.putMeta(ctx, s.key(r.Name), text, old, meta)
	if err == nil && s.md5 && string(v) != sum(text) {
		return caslock.Absent, fmt.Errorf("%s: the store answers a write with the ETag of another", s) // it is read back
	}
	return v, err
}

// put writes on a condition.
func (s *store) put(ctx context.Context, key string, text []byte, old caslock.Version) (caslock.Version, error) {
	return s.putMeta(ctx, key, text, old, nil)
}

// putMeta writes on a condition. An answer of 404, 409 (another write was under way) or 412 says that
// nothing was written, if it is the store's own: a balancer's has no XML.
func (s *store) putMeta(ctx context.Context, key string, text []byte, old caslock.Version, meta map[string]string) (caslock.Version, error) {
	o := minio.PutObjectOptions{ContentType: "application/json", DisableContentSha256: s.core.EndpointURL().Scheme == "https", UserMetadata: meta}
	if old == caslock.Absent {
		o.SetMatchETagExcept("*")
	} else {
		o.SetMatchETag(string(old))
	}
	info, err := s.core.PutObject(ctx, s.bucket, key, bytes.NewReader(text), int64(len(text)), "", "", o)
	if answered(err, http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed) && minio.ToErrorResponse(err).Code != "NoSuchBucket" {
		return caslock.Absent, caslock.ErrConflict
	}
	if err != nil {
		return caslock.Absent, s.explain(ctx, err)
	}
	return s.version(info.ETag)
}

// answered reports whether the store itself has answered with one of these.
func answered(err error, statuses ...int) bool {
	r := minio.ToErrorResponse(err)
	return err != nil && r.XMLName.Local == "Error" && slices.Contains(statuses, r.StatusCode)
}

// errTooMany says that the store takes no more requests at the moment. A write may have been done.
var errTooMany = errors.New("too many requests")

// List yields names; a hashed one is in its object. It yields those of other prefixes as well: to
// read many of them takes longer than the caller waits for one answer.
func (s *store) List(ctx context.Context, _ string, yield func(caslock.Record, caslock.Version) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var other error // a record of another format: not to be taken for a free lock
	for o := range s.core.Client.ListObjects(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix, Recursive: true}) {
		if o.Err != nil {
			return s.explain(ctx, o.Err)
		}
		encoded := strings.TrimPrefix(o.Key, s.prefix)
		name, readable := driver.DecodeName(encoded)
		switch {
		case readable:
			if !yield(caslock.Record{Name: name}, caslock.Absent) {
				return nil
			}
		case strings.HasPrefix(encoded, "~") && !strings.HasPrefix(encoded, probeKey):
			r, v, err := s.loadKey(ctx, o.Key)
			if errors.Is(err, driver.ErrInvalid) {
				other = err
			}
			if err == nil && s.key(r.Name) == o.Key && !yield(r, v) {
				return nil
			}
		}
	}
	return cmp.Or(ctx.Err(), other)
}

func status(err error) int {
	if err == nil {
		return 0
	}
	return minio.ToErrorResponse(err).StatusCode
}

// explain gives the client library's errors the words and the sentinels of hasp's.
func (s *store) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	wrap := func(kind error, text string) error { return fmt.Errorf("%w: %s: %s", kind, s, text) }
	switch r := minio.ToErrorResponse(err); r.Code {
	case "NoSuchBucket":
		return wrap(driver.ErrInvalid, "there is no such bucket")
	case "AccessDenied", "AllAccessDisabled":
		return wrap(driver.ErrRefused, "no permission; the locks need s3:GetObject, s3:PutObject and s3:ListBucket")
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken":
		return fmt.Errorf("%w: %w: %s: the credentials are refused (%s)", driver.ErrInvalid, driver.ErrRefused, s, r.Code)
	case "RequestTimeTooSkewed":
		return wrap(driver.ErrRefused, "this machine's clock is more than 15 minutes off")
	case "NotImplemented":
		return wrap(driver.ErrInvalid, "the store does not know conditions on PUT (If-None-Match, If-Match)")
	}
	if n := status(err); n == http.StatusTooManyRequests || n == http.StatusServiceUnavailable {
		return fmt.Errorf("%w: %s: %w", errTooMany, s, err)
	}
	var credentialless interface{ Timeout() bool }
	if errors.As(err, &credentialless) && credentialless.Timeout() {
		return fmt.Errorf("%s: no answer in time", s)
	}
	return fmt.Errorf("%s: %w", s, err)
}
