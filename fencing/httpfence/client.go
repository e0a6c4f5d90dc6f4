package httpfence

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"

	"github.com/hasplock/hasp/fencing"
)

// With sends a HEAD request to the address, after which the server refuses every token smaller than
// the lease's, and returns a client whose requests carry the lock's name and token. Otherwise it is
// like base, nil for http.DefaultClient. It belongs to one lease and one server: a request to
// another server fails with fencing.ErrInvalid, since that server was not told first.
//
// With returns a *fencing.StaleError if the server has seen a greater token, and an error if the
// server at the address does not compare tokens, regardless of its status. After any error but a
// stale token the server may have advanced: call With again with the same lease, or give the lease
// up.
func With(ctx context.Context, base *http.Client, lease fencing.Grant, address string) (*http.Client, error) {
	t := &transport{base: http.DefaultTransport, name: lease.Name(), token: lease.Token()}
	if err := fencing.Check(t.name, t.token); err != nil {
		return nil, err
	}
	client := &http.Client{}
	if base != nil {
		*client = *base
	}
	if client.Transport != nil {
		t.base = client.Transport
	}
	client.Transport = t
	if err := t.advance(ctx, client, address); err != nil {
		return nil, err
	}
	return client, nil
}

// transport adds the lock's name and token to every request to one server.
type transport struct {
	base  http.RoundTripper
	name  string
	token uint64

	server atomic.Pointer[string] // nil until With has advanced
}

// origin is scheme, host and port: they tell two servers apart.
func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// advance may be redirected to another server: then it is that one which has compared, and which
// the client is for.
func (t *transport) advance(ctx context.Context, client *http.Client, address string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, address, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := Err(resp); err != nil {
		return err
	}
	if resp.Header.Get(TokenHeader) != strconv.FormatUint(t.token, 10) {
		return fmt.Errorf("%w: %s answered %s without comparing the token", fencing.ErrInvalid, resp.Request.URL.Redacted(), resp.Status)
	}
	server := origin(resp.Request.URL)
	t.server.Store(&server)
	return nil
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if server := t.server.Load(); server != nil && *server != origin(r.URL) {
		if r.Body != nil {
			r.Body.Close() // a RoundTripper must close it even if it fails
		}
		return nil, fmt.Errorf("%w: this client writes to %s under token %d of lock %q, and %s has not been told that token; call With for it",
			fencing.ErrInvalid, *server, t.token, t.name, origin(r.URL))
	}
	r = r.Clone(r.Context()) // the caller's request must not change
	r.Header.Set(LockHeader, url.PathEscape(t.name))
	r.Header.Set(TokenHeader, strconv.FormatUint(t.token, 10))
	return t.base.RoundTrip(r)
}

// Err returns a *fencing.StaleError if the response says that the token of its request was stale,
// and nil for every other response. It does not touch the body. A transport must not interpret
// responses, so this is a separate call.
func Err(resp *http.Response) error {
	if resp.StatusCode != http.StatusPreconditionFailed || resp.Request == nil {
		return nil // 412 is also the answer to a failed If-Match
	}
	seen, err := strconv.ParseUint(resp.Header.Get(TokenHeader), 10, 64)
	if err != nil {
		return nil
	}
	name, err := url.PathUnescape(resp.Header.Get(LockHeader))
	if err != nil {
		return nil
	}
	token, err := strconv.ParseUint(resp.Request.Header.Get(TokenHeader), 10, 64)
	if err != nil {
		return nil
	}
	return fencing.Compare(name, token, seen)
}
