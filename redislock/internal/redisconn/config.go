package redisconn

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/tlsparams"
)

// Config is how to reach Redis.
type Config struct {
	Label  string // for people: scheme and hosts
	Addrs  []string
	User   string
	Secret string // the password
	DB     int
	TLS    *tls.Config
	Secure tlsparams.Params // what TLS was made of

	Sentinel                       string // the master's name; Addrs are then the sentinels
	SentinelUser, SentinelPassword string

	ConnectTimeout time.Duration
}

// Schemes are the URL schemes of Redis and Valkey, and whether they mean TLS.
var Schemes = map[string]bool{"redis": false, "rediss": true, "valkey": false, "valkeys": true}

const defaultConnectTimeout = 2 * time.Second

// pingInterval is after how long without an answer a connection is pinged. It bounds how late a
// client learns that its subscription is silent although its connection stands, as with a server
// that hangs; the kernel finds a dead path in less. Messages are no answers to rueidis, so each
// client that waits for messages pings each of its servers that often: once a second, 512 clients
// of five servers sent them thousands of pings a second.
const pingInterval = 5 * time.Second

// silenceBound is how long a ping waits for its answer.
const silenceBound = 3 * time.Second

// Parse reads the parts of a URL that say how to connect, with TLS if it is secure. Errors
// name no value that could be a secret.
func Parse(u *url.URL, p *driver.Params, secure bool) (Config, error) {
	cfg := Config{
		Sentinel:         p.String("sentinel", ""),
		SentinelUser:     p.String("sentinel_user", ""),
		SentinelPassword: p.String("sentinel_password", ""),
		ConnectTimeout:   p.Duration("connect_timeout", defaultConnectTimeout),
	}
	if u.User != nil {
		cfg.User = u.User.Username()
		cfg.Secret, _ = u.User.Password()
		if cfg.Secret == "" && cfg.User != "" {
			return cfg, fmt.Errorf("%w: a user without a password; a password alone is written %s://:PASSWORD@host", driver.ErrInvalid, u.Scheme)
		}
	}
	hosts := u.Host
	if hosts == "" {
		hosts = "127.0.0.1"
	}
	var err error
	if cfg.Addrs, err = driver.Hosts(hosts, "6379"); err != nil {
		return cfg, err
	}
	cfg.Label = u.Scheme + "://" + strings.Join(cfg.Addrs, ",")
	if path := strings.Trim(u.Path, "/"); path != "" {
		if cfg.DB, err = strconv.Atoi(path); err != nil || cfg.DB < 0 {
			return cfg, fmt.Errorf("%w: the path of a %s URL is the number of a database", driver.ErrInvalid, u.Scheme)
		}
		cfg.Label += "/" + path
	}
	if u.Opaque != "" {
		return cfg, fmt.Errorf("%w: write %s://HOST", driver.ErrInvalid, u.Scheme)
	}
	cfg.Secure = tlsparams.Take(p)
	if secure && cfg.Secure.Off() {
		return cfg, fmt.Errorf("%w: tls=false contradicts the scheme %s", driver.ErrInvalid, u.Scheme)
	}
	// An empty server name means that of the address, which tls.Dialer verifies.
	cfg.TLS, err = cfg.Secure.Config(secure)
	return cfg, err
}

// options are rueidis's. Retries are off: a caller that repeats a request must know that it does.
// There is one connection and not several, so that requests keep their order and a server has few
// connections.
func (cfg Config) options(d *dialer) rueidis.ClientOption {
	nd := net.Dialer{
		Timeout:         cfg.ConnectTimeout,
		KeepAlive:       pingInterval, // rueidis's
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 5},
	}
	return rueidis.ClientOption{
		InitAddress: cfg.Addrs, Username: cfg.User, Password: cfg.Secret, SelectDB: cfg.DB, ClientName: "hasp",
		TLSConfig: cfg.TLS, Dialer: nd, DialCtxFn: d.dial,
		Sentinel: rueidis.SentinelOption{
			MasterSet: cfg.Sentinel, Username: cfg.SentinelUser, Password: cfg.SentinelPassword,
			TLSConfig: cfg.TLS, Dialer: nd,
			// A message of the sentinels can be missed, and then nothing else reports it.
			TopologyRefreshInterval: 5 * time.Second,
		},
		ClusterOption:       rueidis.ClusterOption{MaxMovedRedirections: 16},
		DisableRetry:        true,
		DisableCache:        true, // no client-side caching: CLIENT TRACKING would be one command more
		AlwaysPipelining:    true, // the other mode cannot be cancelled
		PipelineMultiplex:   -1,
		BlockingPoolSize:    mostWaiting + 4, // and the one for messages; 1,024 without this
		BlockingPoolMinSize: 1,
		BlockingPoolCleanup: time.Minute,
		RingScaleEachConn:   ringScale,
		ReadBufferEachConn:  32 << 10,
		WriteBufferEachConn: 32 << 10,
		ConnWriteTimeout:    silenceBound,
	}
}
