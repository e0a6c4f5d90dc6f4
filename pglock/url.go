package pglock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp/driver"
)

func init() {
	driver.Register("postgres", openURL)
	driver.Register("postgresql", openURL)
}

// passedOn are the parameters of a connection URL that mean here what they mean to every
// client of PostgreSQL.
var passedOn = []string{
	"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "passfile", "servicefile", "service",
	"connect_timeout", "target_session_attrs", "application_name", "channel_binding",
}

// Open connects to the store that a URL names; docs/backends/postgres.md has its parameters. ctx
// bounds the connecting only. It is for programs that want the backend itself: hasp.Open makes a
// client, and takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "postgres", "postgresql")
}

// openURL opens
//
//	postgres://[USER[:PASSWORD]@][HOST[:PORT][,HOST[:PORT]...]]/[DATABASE][?parameters]
//
// with the settings of the URL, the PG* environment variables and the password file, in
// this order. It looks at the server, and creates nothing yet.
func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	p := driver.NewParams(u.Query())
	o := &Options{
		Strategy:       driver.OneOf(p, "strategy", StrategyTable, StrategyAdvisory),
		Schema:         p.String("schema", ""),
		Prefix:         p.String("prefix", ""),
		NoMigrate:      !p.Bool("migrate", true),
		Connections:    p.Int("connections", 0, 1, 1000),
		Poll:           p.Duration("poll", 0),
		NoListen:       !p.Bool("listen", true),
		Retention:      p.Duration("retention", 0),
		Key:            p.String("key", ""),
		Slice:          p.Duration("slice", 0),
		NoFence:        driver.OneOf(p, "fence", "on", "off") == "off",
		DurableRelease: driver.OneOf(p, "durable_release", "off", "on") == "on",
	}
	for other, ours := range map[string]string{"pool_max_conns": "connections=", "search_path": "schema="} { // of other clients
		if u.Query().Has(other) {
			return nil, fmt.Errorf("%w: parameter %q has no effect here; use %s", driver.ErrInvalid, other, ours)
		}
	}
	cfg, err := connConfig(u, p)
	if err == nil {
		err = p.Err()
	}
	var opts Options
	if err == nil {
		opts, err = o.withDefaults()
	}
	if err != nil {
		return nil, err
	}
	d := &dialer{cfg: cfg, own: true}
	pool, err := d.pool(ctx, opts)
	if err != nil {
		return nil, err
	}
	return newBackend(d, d.runner(pool), func() { closeSoon(pool, time.Second) }, opts), nil
}

// connConfig makes pgx's settings of a URL, without I/O but for the files it names. pgx
// would fall back to plaintext where TLS fails; here plaintext must be asked for.
func connConfig(u *url.URL, p *driver.Params) (*pgx.ConnConfig, error) {
	q := url.Values{}
	for _, key := range passedOn {
		if p.Has(key) {
			q.Set(key, p.String(key, ""))
		}
	}
	mode := q.Get("sslmode")
	if mode == "" {
		mode = os.Getenv("PGSSLMODE")
	}
	if mode == "" {
		mode = defaultMode(u, q)
		q.Set("sslmode", mode)
	}
	if !slices.Contains([]string{"disable", "require", "verify-ca", "verify-full"}, mode) {
		return nil, fmt.Errorf("%w: sslmode must be verify-full (the default), verify-ca, require or disable: the others fall back to plaintext unasked", driver.ErrInvalid)
	}
	if strings.Contains(u.Host, ",") && !p.Has("target_session_attrs") {
		q.Set("target_session_attrs", "read-write") // of several, the primary
	}
	plain, err := plainURL(u, q)
	if err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(plain)
	if err != nil {
		return nil, badURL(err)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = dialTimeout
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "hasp"
	}
	return cfg, nil
}

// plainURL is for pgx to parse. Hosts and ports are parameters in it: in their place net/url
// takes no list of IPv6 addresses, and no directory of a socket. A port that is not there pgx finds
// (PGPORT, a service file).
func plainURL(u *url.URL, q url.Values) (string, error) {
	plain := *u
	plain.Scheme = "postgres"
	if u.Host != "" && !strings.HasPrefix(u.Host, ":") { // a port alone goes with pgx's own host
		hosts, ports, err := hostsAndPorts(u.Host)
		if err != nil {
			return "", err
		}
		q = maps.Clone(q)
		q.Set("host", hosts)
		if strings.Trim(ports, ",") != "" {
			q.Set("port", ports)
		}
		plain.Host = ""
	}
	if plain.Host == "" && plain.Path == "" {
		plain.Path = "/" // or net/url leaves out the slashes by which pgx knows a URL
	}
	plain.RawQuery = q.Encode()
	return plain.String(), nil
}

// hostsAndPorts splits a list, or the directory of a socket: libpq's
// postgres://%2Frun%2Fpostgresql/db.
func hostsAndPorts(list string) (hosts, ports string, err error) {
	if strings.HasPrefix(list, "/") && !strings.Contains(list, ",") {
		if i := strings.LastIndexByte(list, ':'); i > 0 {
			return list[:i], list[i+1:], nil
		}
		return list, "", nil
	}
	addrs, err := driver.Hosts(list, "")
	var h, p []string
	for _, a := range addrs {
		host, port, _ := net.SplitHostPort(a)
		h, p = append(h, host), append(p, port)
	}
	return strings.Join(h, ","), strings.Join(p, ","), err
}

// badURL reports what pgx found without its message, which quotes the URL; a file's name is not
// secret.
func badURL(err error) error {
	var file *fs.PathError
	if errors.As(err, &file) {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, file)
	}
	return fmt.Errorf("%w: the postgres URL's hosts, ports or parameters (%s) cannot be understood", driver.ErrInvalid, strings.Join(passedOn, ", "))
}

// dialTimeout bounds a dial where connect_timeout does not.
const dialTimeout = 5 * time.Second

// pool makes the pool, and examines the server by its first connection: a program that opens a
// store for a single lock would otherwise connect three times.
func (d *dialer) pool(ctx context.Context, o Options) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig("sslmode=disable") // the pool's own defaults; the connection's settings are ours
	if err != nil {
		return nil, badURL(err)
	}
	var examined atomic.Bool
	cfg.ConnConfig, cfg.MaxConns = d.cfg, int32(o.Connections)
	cfg.PingTimeout = dialTimeout // of a connection that was idle; without it one that is silent keeps its place for a minute
	cfg.BeforeConnect = func(_ context.Context, cfg *pgx.ConnConfig) error {
		d.renewTLS(cfg)
		if examined.Load() && d.seen.pooler != "" {
			neverCancel(cfg)
		}
		return nil
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		setKeepAlive(conn)
		if !examined.Load() {
			return nil // whether it may have our settings is not known yet
		}
		return d.configure(ctx, conn)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg) // its context is not the pool's life
	if err != nil {
		return nil, err
	}
	err = repeatMixedUp(func() error {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer c.Release()
		err = d.examine(ctx, c.Conn(), o)
		examined.Store(true)
		if err == nil && d.seen.pooler == "" {
			return d.configure(ctx, c.Conn())
		}
		(&pgxLink{conn: c.Conn()}).close() // behind a pooler the looking leaves a LISTEN there
		return err
	})
	if err != nil {
		closeSoon(pool, 100*time.Millisecond) // for ctx may have ended
		return nil, explain(ctx, err)
	}
	return pool, nil
}

// closeSoon closes a pool, and waits for that for a moment only. The pool waits for every call that
// is under way, and for pgx's goodbye on each connection whose statement was given up: 15 s, if the
// network is silent. What is under way at the end of the wait goes on, and ends by itself; the
// server removes what it leaves with its connection.
func closeSoon(pool *pgxpool.Pool, within time.Duration) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(within):
	}
}

// defaultMode is the sslmode of a URL that has none: as mysqllock does, verified TLS to every host
// but this one. What goes over loopback, only root of this machine can read, and a server that was
// installed a minute ago has no certificate that anybody could verify. A URL that names files for
// TLS wants it. pgx knows where the hosts come from besides the URL (PGHOST, a service file); if
// one of several is elsewhere, all are asked for TLS.
func defaultMode(u *url.URL, q url.Values) string {
	const verified = "verify-full"
	for key := range q {
		if strings.HasPrefix(key, "ssl") {
			return verified
		}
	}
	trial := maps.Clone(q)
	trial.Set("sslmode", "disable")
	plain, err := plainURL(u, trial)
	if err != nil {
		return verified // the caller meets the same error
	}
	cfg, err := pgx.ParseConfig(plain)
	if err != nil {
		return verified // as here
	}
	hosts := []string{cfg.Host}
	for _, f := range cfg.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, h := range hosts {
		if !here(h) {
			return verified
		}
	}
	return "disable"
}

// here reports whether a host is this machine: loopback, or the directory of a socket.
func here(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasPrefix(host, "/") || ip != nil && ip.IsLoopback()
}
