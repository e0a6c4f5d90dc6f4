// Package httplock keeps locks at a server of `hasp serve`, which keeps them in its store: for
// programs that cannot, or should not, reach the store themselves. Importing it registers the URL
// schemes hasp+http and hasp+https with hasp.Open:
//
//	hasp+http://127.0.0.1:7070
//	hasp+https://TOKEN@locks.example.com[?token_file=FILE&ca=FILE&cert=FILE&key=FILE&servername=NAME]
//
// The token may be in the file that token_file names instead. It is sent over TLS, or to this
// machine, and nowhere else. Parameters ca, cert, key and servername say what is special about TLS.
//
// # What is promised
//
// What the store behind the server promises: Traits are the store's, as the server says when the
// URL is opened. A keep-alive goes through the server to the store and back, and is counted from
// before it was sent here, which is before the server sent its own. So a lock is given up in time,
// also if the server dies or either network is silent.
//
// A server that has ended or was started anew has forgotten its sessions. What is held is then
// adopted by the server that answers, if the store can hand a lock on (driver.Adopter); otherwise
// it is lost (hasp.ErrLost), before the store may grant it to others. What waits queues again. A
// release that meets such a server may have an unknown outcome (hasp.ErrUnknown). docs/SERVE.md has
// more.
//
// A session has one request open, however many of its locks are held and waited for: its answer
// tells of losses and of grants.
package httplock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/tlsparams"
	"github.com/hasplock/hasp/internal/httpapi"
)

func init() {
	driver.Register("hasp+http", openURL)
	driver.Register("hasp+https", openURL)
}

// defaultPort is where hasp serve listens if nothing else is said.
const defaultPort = "7070"

// Options are settings for New. nil means the defaults.
type Options struct {
	Token string      // sent with each request; none if empty
	TLS   *tls.Config // for https; the system's defaults if nil

	secure tlsparams.Params // what TLS was made of, if of a URL
}

// Open connects to the server that a URL names; docs/SERVE.md has its parameters. ctx bounds the
// connecting only. It is for programs that want the backend itself: hasp.Open makes a client, and
// takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, serverURL string) (driver.Backend, error) {
	return driver.Open(ctx, serverURL, "hasp+http", "hasp+https")
}

// New connects to a server at an address such as http://127.0.0.1:7070. ctx bounds the connecting
// only.
func New(ctx context.Context, address string, o *Options) (driver.Backend, error) {
	if o == nil {
		o = &Options{}
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%w: the address of a server is as http://127.0.0.1:7070 or https://locks.example.com", driver.ErrInvalid)
	}
	if o.Token != "" && u.Scheme == "http" && !httpapi.Here(u.Hostname()) {
		return nil, fmt.Errorf("%w: a token is sent over TLS, or to this machine: say https (or hasp+https)", driver.ErrInvalid)
	}
	return connect(ctx, u, o)
}

// openURL checks the URL, and asks the server what is behind it: a wrong address, certificate or
// token is told now.
func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	p := driver.NewParams(u.Query())
	file := p.String("token_file", "")
	secure := tlsparams.Take(p)
	if err := p.Err(); err != nil {
		return nil, err
	}
	o := &Options{Token: u.User.Username()}
	_, password := u.User.Password()
	withTLS := u.Scheme == "hasp+https"
	switch {
	case u.Opaque != "" || strings.Trim(u.Path, "/") != "":
		return nil, fmt.Errorf("%w: a %s URL has a host, and no path", driver.ErrInvalid, u.Scheme)
	case password:
		return nil, fmt.Errorf("%w: a %s URL has a token before the '@', and no password", driver.ErrInvalid, u.Scheme)
	case o.Token != "" && file != "":
		return nil, fmt.Errorf("%w: the token is in the URL or in token_file, not in both", driver.ErrInvalid)
	case secure.Off() && withTLS:
		return nil, fmt.Errorf("%w: without TLS the scheme is hasp+http", driver.ErrInvalid)
	}
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%w: parameter token_file: %w", driver.ErrInvalid, err)
		}
		o.Token = strings.TrimSpace(string(b))
	}
	o.secure = secure
	var err error
	if o.TLS, err = secure.Config(withTLS); err != nil {
		return nil, err
	}
	if o.TLS != nil && !withTLS {
		return nil, fmt.Errorf("%w: with TLS the scheme is hasp+https", driver.ErrInvalid)
	}
	hosts, err := driver.Hosts(u.Host, defaultPort)
	if err != nil {
		return nil, err
	}
	if len(hosts) > 1 {
		return nil, fmt.Errorf("%w: a %s URL has one host; for several, the name of a proxy before them", driver.ErrInvalid, u.Scheme)
	}
	return New(ctx, strings.TrimPrefix(u.Scheme, "hasp+")+"://"+hosts[0], o)
}

// connect asks the server what is behind it.
func connect(ctx context.Context, u *url.URL, o *Options) (driver.Backend, error) {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	b := &backend{
		base: u.Scheme + "://" + u.Host, host: u.Host, token: o.Token,
		// HTTP/1.1: a request without an answer costs its own connection only, and the next attempt
		// is on a fresh one. No proxy of the environment: it would be one more that can delay a
		// renewal.
		client: &http.Client{
			Transport: &http.Transport{
				DialContext: dialer.DialContext, TLSClientConfig: o.TLS.Clone(), TLSHandshakeTimeout: 5 * time.Second,
				MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	b.closed, b.close = context.WithCancelCause(context.Background())
	if err := b.call(ctx, request{method: http.MethodGet, path: "/v1"}, &b.store); err != nil {
		b.client.CloseIdleConnections()
		if p := new(httpapi.Problem); errors.As(err, &p) { // an error of the network names the server itself
			err = fmt.Errorf("hasp serve at %s: %w", u.Host, err)
		}
		return nil, err
	}
	return b.withAbilities(b.store), nil
}
