package s3lock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/hasplock/hasp/driver"
)

// Diagnose looks at what else happens to the objects of the bucket, and at this machine's clock.
func (s *store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	passed, err := s.wholeProbe(ctx)
	if err != nil && !errors.Is(err, driver.ErrInvalid) {
		return nil, err
	}
	var found []driver.Finding
	add := func(level driver.Level, subject, text, cure string) {
		found = append(found, driver.Finding{Level: level, Subject: subject, Text: text, Cure: cure})
	}
	switch {
	case err != nil:
		add(driver.Bad, "conditions", err.Error(), "take another store, or what stands between out of the way")
	case passed.MD5:
		add(driver.Info, "conditions", "If-None-Match and If-Match were tried by writes at once, and are honoured; each read is checked by its ETag, the MD5 of the object", "")
	default:
		add(driver.Info, "conditions", "If-None-Match and If-Match were tried by writes at once, and are honoured; ETags are no MD5, so each read is checked by the nonce in the metadata", "")
	}
	if v, err := s.core.GetBucketVersioning(ctx, s.bucket); err == nil && v.Enabled() {
		add(driver.Warn, "versions", "the bucket keeps every version: each renewal leaves one, 4,320 a day for a lock with a TTL of 60 s",
			"expire noncurrent versions under the prefix after a day, or take a bucket without versions")
	}
	if _, mode, _, _, err := s.core.GetObjectLockConfig(ctx, s.bucket); err == nil && mode != nil {
		add(driver.Warn, "object lock", "the bucket keeps versions by a default retention: those of renewals pile up and cannot be removed", "take another bucket")
	}
	if rules, err := s.core.GetBucketLifecycle(ctx, s.bucket); err == nil && rules != nil {
		for _, r := range rules.Rules {
			under := r.RuleFilter.Prefix + r.RuleFilter.And.Prefix + r.Prefix
			if r.Status == "Enabled" && !r.Expiration.IsNull() && (strings.HasPrefix(s.prefix, under) || strings.HasPrefix(under, s.prefix)) {
				add(driver.Warn, "lifecycle", fmt.Sprintf("rule %q deletes objects under the prefix: a lock that is not renewed for so long loses its last token (the next is still greater, by the clock)", r.ID),
					"leave the prefix out of the rule")
			}
		}
	}
	before := time.Now()
	body, _, header, err := s.core.GetObject(ctx, s.bucket, s.prefix+probeKey, minio.GetObjectOptions{})
	if err != nil {
		return found, s.explain(ctx, err)
	}
	body.Close()
	if at, err := http.ParseTime(header.Get("Date")); err == nil {
		if off := before.Sub(at).Abs(); off > 5*time.Minute {
			add(driver.Warn, "clock", fmt.Sprintf("this machine's clock is %s off the store's; from 15 minutes on the store refuses requests", off.Round(time.Second)), "set the clock")
		}
	}
	return found, nil
}
