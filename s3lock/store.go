package s3lock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

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

// loadKey reads body and ETag in one answer.
func (s *store) loadKey(ctx context.Context, key string) (caslock.Record, caslock.Version, error) {
	body, info, _, err := s.core.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if status(err) == http.StatusNotFound && minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return caslock.Record{}, caslock.Absent, nil
	}
	if err != nil {
		return caslock.Record{}, caslock.Absent, s.explain(ctx, err)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, longestRecord))
	if err != nil {
		return caslock.Record{}, caslock.Absent, s.explain(ctx, err)
	}
	r, err := caslock.Decode(text)
	if err != nil {
		return r, caslock.Absent, fmt.Errorf("%w (object %q)", err, key)
	}
	return r, caslock.Version(info.ETag), nil
}

func (s *store) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	return s.put(ctx, s.key(r.Name), r.Encode(), old)
}

// put writes on a condition. An answer of 404, 409 (another write was under way) or 412 says that
// nothing was written.
func (s *store) put(ctx context.Context, key string, text []byte, old caslock.Version) (caslock.Version, error) {
	o := minio.PutObjectOptions{ContentType: "application/json", DisableContentSha256: s.core.EndpointURL().Scheme == "https"}
	if old == caslock.Absent {
		o.SetMatchETagExcept("*")
	} else {
		o.SetMatchETag(string(old))
	}
	info, err := s.core.PutObject(ctx, s.bucket, key, bytes.NewReader(text), int64(len(text)), "", "", o)
	switch status(err) {
	case http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed:
		if minio.ToErrorResponse(err).Code != "NoSuchBucket" {
			return caslock.Absent, caslock.ErrConflict
		}
	}
	if err != nil {
		return caslock.Absent, s.explain(ctx, err)
	}
	return caslock.Version(info.ETag), nil
}

// List yields names; a hashed one is in its object.
func (s *store) List(ctx context.Context, prefix string, yield func(caslock.Record, caslock.Version) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for o := range s.core.Client.ListObjects(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix, Recursive: true}) {
		if o.Err != nil {
			return s.explain(ctx, o.Err)
		}
		encoded := strings.TrimPrefix(o.Key, s.prefix)
		name, readable := driver.DecodeName(encoded)
		switch {
		case readable && strings.HasPrefix(name, prefix):
			if !yield(caslock.Record{Name: name}, caslock.Absent) {
				return nil
			}
		case !readable && strings.HasPrefix(encoded, "~") && !strings.HasPrefix(encoded, probeKey):
			r, v, err := s.loadKey(ctx, o.Key)
			if err == nil && s.key(r.Name) == o.Key && strings.HasPrefix(r.Name, prefix) && !yield(r, v) {
				return nil
			}
		}
	}
	return ctx.Err()
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
	var credentialless interface{ Timeout() bool }
	if errors.As(err, &credentialless) && credentialless.Timeout() {
		return fmt.Errorf("%s: no answer in time", s)
	}
	return fmt.Errorf("%s: %w", s, err)
}
