// Package s3lock keeps locks in a bucket of S3, or of a store that speaks its protocol and honours
// its conditions (If-None-Match and If-Match on PUT): one small object a lock, replaced if it has
// not changed.
//
// It registers the scheme s3 with hasp:
// s3://bucket/prefix?endpoint=https://host:9000&region=eu-central-1. docs/backends/s3.md has its
// options, and what it costs: a bucket is for locks that are taken some times a minute and held for
// longer, with a TTL of a minute. The scheme is that of package caslock.
package s3lock
