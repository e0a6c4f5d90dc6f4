package etcdlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/tlsparams"
)

func init() {
	driver.Register("etcd", openURL)
}

// Open connects to the store that a URL names; docs/backends/etcd.md has its parameters. ctx bounds
// the connecting only. It is for programs that want the backend itself: hasp.Open makes a client,
// and takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "etcd")
}

// openURL connects to
//
//	etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][?parameters]
//
// and makes one read, so that a wrong address, certificate, password or role is told now.
func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	cfg, o, err := parse(u)
	if err != nil {
		return nil, err
	}
	if cfg.Username != "" {
		// clientv3 logs in until time is over, and does not say what the matter was. So it is asked
		// without a name first: etcd refuses that, and what does not reach etcd says why.
		anonymous := cfg
		anonymous.Username, anonymous.Password = "", ""
		b, err := open(ctx, anonymous, o)
		switch {
		case err == nil:
			_ = b.Close()
		case !errors.Is(err, driver.ErrRefused):
			return nil, err
		}
	}
	return open(ctx, cfg, o)
}

func open(ctx context.Context, cfg clientv3.Config, o *Options) (driver.Backend, error) {
	ls := &connections{}
	cfg.DialOptions = append(slices.Clip(cfg.DialOptions), grpc.WithContextDialer(ls.dial))
	client, err := connect(ctx, cfg)
	if err == nil {
		var b *Backend
		if b, err = New(client, o); err == nil {
			b.own, b.connections = true, ls
			_, err = b.read(ctx, "read", &pb.RangeRequest{Key: []byte(b.prefix + "~"), KeysOnly: true})
		}
		if err == nil {
			return b, nil
		}
		_ = client.Close() // the news is why it is of no use
	}
	if errors.Is(err, driver.ErrRefused) || ctx.Err() != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w%s", err, cure(err))
}

// parse checks a URL without any I/O but reading the files it names.
func parse(u *url.URL) (clientv3.Config, *Options, error) {
	p := driver.NewParams(u.Query())
	o := &Options{Prefix: p.String("prefix", DefaultPrefix)}
	if o.Prefix == "" {
		o.NoPrefix = true
	}
	secure := tlsparams.Take(p)
	cfg := settings()
	if err := p.Err(); err != nil {
		return cfg, nil, err
	}
	if u.Opaque != "" || u.Path != "" && u.Path != "/" {
		return cfg, nil, fmt.Errorf("%w: an etcd URL has no path; use the parameter prefix", driver.ErrInvalid)
	}
	cfg.Username = u.User.Username()
	cfg.Password, _ = u.User.Password()
	if (cfg.Username == "") != (cfg.Password == "") {
		return cfg, nil, fmt.Errorf("%w: an etcd URL has both a user and a password, or neither", driver.ErrInvalid)
	}
	if secure.ServerName() != "" {
		return cfg, nil, fmt.Errorf("%w: etcd's client takes no servername: it always demands the address's", driver.ErrInvalid)
	}
	var err error
	if cfg.TLS, err = secure.Config(false); err != nil {
		return cfg, nil, err
	}
	scheme := "http://"
	if cfg.TLS != nil {
		scheme = "https://"
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithTransportCredentials(freshCredentials{credentials.NewTLS(cfg.TLS), cfg.TLS, secure}))
	}
	hosts, err := driver.Hosts(u.Host, "2379")
	if err != nil {
		return cfg, nil, err
	}
	for _, host := range hosts {
		cfg.Endpoints = append(cfg.Endpoints, scheme+host)
	}
	return cfg, o, nil
}

// freshCredentials are those of a TLS configuration, whose files each handshake reads again.
type freshCredentials struct {
	credentials.TransportCredentials
	first  *tls.Config
	secure tlsparams.Params
}

func (c freshCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(c.secure.Fresh(c.first)).ClientHandshake(ctx, authority, conn)
}

func (c freshCredentials) Clone() credentials.TransportCredentials { return c }

// settings are those of every client that hasp makes.
func settings() clientv3.Config {
	return clientv3.Config{
		DialTimeout: patience, // bounds the wait for the first token only
		// Ten seconds is the least that gRPC sends. It is for connections on which nothing is
		// asked, with a watch say; see connections for the others.
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		PermitWithoutStream:  false, // etcd's servers close a connection over it
		// The least that still gets a new token when one has expired; see Backend.
		MaxUnaryRetries: 2,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			// gRPC's own pause grows to two minutes, and a lock may not come back that late.
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
		// A library does not write to standard error. This is etcd's own way to say "no log"
		// that needs no import of its logger.
		Logger: clientv3.NewCtxClient(context.Background()).GetLogger(),
	}
}

// connect makes the client. With user and password that is a call to the server, which
// clientv3 bounds by DialTimeout and not by a context.
func connect(ctx context.Context, cfg clientv3.Config) (*clientv3.Client, error) {
	type result struct {
		client *clientv3.Client
		err    error
	}
	done := make(chan result, 1) // one slot: the caller may have stopped waiting
	go func() {
		var r result
		_ = pastLearners(func() error {
			r.client, r.err = clientv3.New(cfg)
			return r.err
		})
		done <- r
	}()
	select {
	case r := <-done:
		if errors.Is(r.err, context.DeadlineExceeded) { // which is clientv3's, and not the caller's
			r.err = fmt.Errorf("%w within %s", errNoAnswer, patience)
		}
		return r.client, explain(ctx, "log in", r.err)
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				_ = r.client.Close() // no caller is left for its error
			}
		}()
		return nil, ctx.Err()
	}
}
