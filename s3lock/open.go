package s3lock

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/tlsparams"
)

func init() { driver.Register("s3", openURL) }

// MinTTL is the shortest TTL: renewals are requests that are paid for, and answered in tens of
// milliseconds at best.
const MinTTL = 5 * time.Second

// Options are the settings of New. nil or zero fields are the defaults.
type Options struct {
	// Prefix begins the keys of all objects. Default: "hasp/".
	Prefix string
	// Poll is how often a waiter reads at first; it slows down to a sixth of the holder's TTL.
	// Default: 1 s.
	Poll time.Duration
}

// Open connects to the bucket that a URL names, and tries whether it honours conditions. ctx bounds
// that only. Errors never show the URL.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "s3")
}

func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	if u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("%w: write s3://BUCKET/PREFIX; credentials come from the environment, ~/.aws/credentials or the instance", driver.ErrInvalid)
	}
	p := driver.NewParams(u.Query())
	endpoint, region := p.String("endpoint", "https://s3.amazonaws.com"), p.String("region", "")
	pathStyle := p.Bool("path_style", false)
	o := &Options{Prefix: strings.TrimPrefix(u.Path, "/"), Poll: p.Duration("poll", time.Second)}
	secure := tlsparams.Take(p)
	if err := p.Err(); err != nil {
		return nil, err
	}
	e, err := url.Parse(endpoint)
	if err != nil || e.Scheme != "https" && e.Scheme != "http" || e.Host == "" || e.Path != "" && e.Path != "/" || e.User != nil {
		return nil, fmt.Errorf("%w: parameter \"endpoint\" must be http://HOST:PORT or https://HOST:PORT", driver.ErrInvalid)
	}
	config, err := secure.Config(e.Scheme == "https")
	if err != nil {
		return nil, err
	}
	if (config != nil) != (e.Scheme == "https") {
		return nil, fmt.Errorf("%w: whether there is TLS is said by the endpoint: https:// or http://", driver.ErrInvalid)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	transport.DisableCompression = true
	if config != nil {
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{Config: secure.Fresh(config)}).DialContext(ctx, network, address)
		}
	}
	lookup := minio.BucketLookupAuto
	if pathStyle {
		lookup = minio.BucketLookupPath
	}
	client, err := minio.New(e.Host, &minio.Options{
		// The chain that users of S3 know, without the keys in a URL.
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.EnvMinio{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		}),
		Secure: e.Scheme == "https", Region: region, BucketLookup: lookup, Transport: transport,
		MaxRetries: 1, // zero means ten: a write that is sent twice may find itself
	})
	if err != nil {
		return nil, fmt.Errorf("%w: the endpoint is refused by the client library", driver.ErrInvalid)
	}
	return open(ctx, client, u.Host, o, transport.CloseIdleConnections)
}

// New makes a backend of a bucket, by a client of yours, whose Options.MaxRetries must be 1, and
// tries whether the bucket honours conditions. The client is not closed.
func New(ctx context.Context, client *minio.Client, bucket string, opts *Options) (driver.Backend, error) {
	return open(ctx, client, bucket, opts, func() {})
}

// open is New; closed is called when the backend is closed, or is not made.
func open(ctx context.Context, client *minio.Client, bucket string, opts *Options, closed func()) (driver.Backend, error) {
	s := &store{core: minio.Core{Client: client}, bucket: bucket, prefix: "hasp/", closed: closed}
	poll := time.Second
	if opts != nil {
		if opts.Prefix != "" {
			s.prefix = strings.TrimSuffix(opts.Prefix, "/") + "/"
		}
		if opts.Poll > 0 {
			poll = opts.Poll
		}
	}
	probed := make(chan error, 1) // apart: the library waits for credentials without looking at ctx
	go func() { probed <- s.probe(ctx) }()
	var err error
	select {
	case err = <-probed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		closed()
		return nil, err
	}
	return caslock.New(s, &caslock.Options{MinTTL: MinTTL, Poll: poll}), nil
}
