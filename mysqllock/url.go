package mysqllock

import (
	"context"
	"crypto/x509"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/tlsparams"
)

func init() {
	driver.Register("mysql", openURL)
	driver.Register("mariadb", openURL)
}

const (
	defaultPort           = "3306"
	defaultConnectTimeout = 5 * time.Second

	// idleMost is for how long an unused connection is left open. If fewer were kept than are used
	// at a time, a burst of requests would dial all the time.
	idleMost = time.Minute
)

// Open connects to the store that a URL names; docs/backends/mysql.md has its parameters. ctx
// bounds the connecting only. It is for programs that want the backend itself: hasp.Open makes a
// client, and takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "mysql", "mariadb")
}

// openURL connects to
//
//	mysql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?parameters]
//
// or, with the path of a Unix socket for a host (%2Frun%2Fmysqld%2Fmysqld.sock), to that,
// and asks one question, so that a wrong address, certificate, password or database is told
// now. The tables are looked at when they are first used.
func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	cfg, o, err := parse(u)
	if err != nil {
		return nil, err
	}
	p, err := connect(cfg, o)
	if err != nil {
		return nil, err
	}
	var one int
	if err := row(ctx, p.work, "SELECT 1", &one); err != nil {
		p.close()
		return nil, explainOpening(err, cfg.TLS != nil)
	}
	return open(p, o), nil
}

// explainOpening says what another setting can cure. A user, password or database that the server
// does not take is final here: the first connection shows it, and waiting is of no use. For a
// waiter it is not, see refusals: an administrator may be changing the password at this moment.
func explainOpening(err error, encrypted bool) error {
	var unknown x509.UnknownAuthorityError
	switch n := number(err); {
	case n == errAnotherHost, n == errSecureTransport:
		return fmt.Errorf("%w (%w)", err, driver.ErrInvalid)
	case errors.Is(err, mysql.ErrUnknownPlugin), errors.Is(err, mysql.ErrCleartextPassword), errors.Is(err, mysql.ErrOldPassword):
		return fmt.Errorf("%w: the server lets this role in over TLS alone, or by a way to authenticate that hasp has not (it has mysql_native_password, "+
			"caching_sha2_password, sha256_password and ed25519); add tls=true to the URL, or change the role: %w", driver.ErrInvalid, err)
	case errors.Is(err, mysql.ErrMalformPkt), errors.Is(err, mysql.ErrPktSync), errors.Is(err, mysql.ErrPktSyncMul), errors.Is(err, mysql.ErrOldProtocol), errors.Is(err, mysql.ErrPktTooLarge):
		return fmt.Errorf("%w: this is not a MySQL server, or not its port: %w", driver.ErrInvalid, err)
	case n == errAccessDenied && !encrypted:
		return fmt.Errorf("%w (%w); add tls=true to the URL if the role has to use TLS", err, driver.ErrInvalid)
	case n == errAccessDenied, n == errNoDatabaseAccess, n == errNoDatabase:
		return fmt.Errorf("%w (%w)", err, driver.ErrInvalid)
	case errors.Is(err, mysql.ErrNoTLS):
		return fmt.Errorf("%w: the server has no TLS; switch it on there, or add tls=false to the URL, and everything travels in plaintext: %w", driver.ErrInvalid, err)
	case errors.As(err, &unknown):
		return fmt.Errorf("%w: add ca=FILE with the certificate that has signed the server's: %w", driver.ErrInvalid, err)
	}
	return err
}

// parse checks a URL without any I/O but reading the files it names.
func parse(u *url.URL) (*mysql.Config, Options, error) {
	p := driver.NewParams(u.Query())
	o := Options{
		Strategy: driver.OneOf(p, "strategy", StrategyTable, StrategyGetLock), Prefix: p.String("prefix", defaultPrefix),
		NoMigrate: !p.Bool("migrate", true), Retention: p.Duration("retention", defaultRetention),
		NoFence: driver.OneOf(p, "fence", "on", "off") == "off", PlainNames: driver.OneOf(p, "names", "encoded", "plain") == "plain",
		Connections: p.Int("connections", 0, 1, mostConnections),
	}
	secure := tlsparams.Take(p)
	passwordFile := p.String("password_file", "")
	timeout := p.Duration("connect_timeout", defaultConnectTimeout)
	if err := p.Err(); err != nil {
		return nil, o, err
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, o, err
	}
	cfg := mysql.NewConfig()
	cfg.Timeout = timeout
	cfg.Logger = discardLogger{}                      // a library does not write to standard error
	cfg.Params = map[string]string{"autocommit": "1"} // a server's default may be another
	if cfg.Net, cfg.Addr, cfg.DBName, err = address(u); err != nil {
		return nil, o, err
	}
	if cfg.User, cfg.Passwd, err = credentials(u, passwordFile); err != nil {
		return nil, o, err
	}
	if err := encrypt(cfg, secure); err != nil {
		return nil, o, err
	}
	return cfg, o, nil
}

// address takes the kind of network, the address and the database out of a URL.
func address(u *url.URL) (network, addr, database string, err error) {
	network, addr = "unix", u.Host
	if u.Opaque != "" || u.Host == "" {
		return "", "", "", fmt.Errorf("%w: write mysql://USER@HOST/DATABASE", driver.ErrInvalid)
	}
	if !strings.HasPrefix(u.Host, "/") {
		hosts, err := driver.Hosts(u.Host, defaultPort)
		if err != nil {
			return "", "", "", err
		}
		if len(hosts) > 1 {
			return "", "", "", fmt.Errorf("%w: a mysql URL has one host", driver.ErrInvalid)
		}
		network, addr = "tcp", hosts[0]
	}
	database = strings.TrimPrefix(u.Path, "/")
	if database == "" || strings.Contains(database, "/") {
		return "", "", "", fmt.Errorf("%w: the path of a mysql URL is the name of a database: mysql://USER@HOST/DATABASE", driver.ErrInvalid)
	}
	return network, addr, database, nil
}

// credentials come from the URL, or the password from a file or the environment: a URL is
// seen by every user that may list processes.
func credentials(u *url.URL, file string) (user, password string, err error) {
	user = u.User.Username()
	password, given := u.User.Password()
	switch {
	case file != "" && given:
		return "", "", fmt.Errorf("%w: a password in the URL, and the parameter password_file as well", driver.ErrInvalid)
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return "", "", fmt.Errorf("%w: parameter password_file: %w", driver.ErrInvalid, err)
		}
		password = strings.TrimRight(string(b), "\r\n")
	case !given:
		password = os.Getenv("MYSQL_PWD") // as MySQL's own programs do
	}
	if user == "" {
		user = os.Getenv("USER")
	}
	return user, password, nil
}

// encrypt decides about TLS. It is on for every host but this one, unless the URL says
// tls=false: what travels are names, owners and, with an old server, the password.
func encrypt(cfg *mysql.Config, secure tlsparams.Params) error {
	host, _, _ := net.SplitHostPort(cfg.Addr)
	c, err := secure.Config(cfg.Net != "unix" && !loopback(host))
	if err != nil || c == nil {
		return err
	}
	if c.ServerName == "" {
		c.ServerName = host
	}
	cfg.TLS = c
	// The file of a certificate may have been renewed since.
	return cfg.Apply(mysql.BeforeConnect(func(_ context.Context, cfg *mysql.Config) error {
		cfg.TLS = secure.Fresh(cfg.TLS)
		return nil
	}))
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// connect makes the pools. Nothing is sent yet.
func connect(cfg *mysql.Config, o Options) (pools, error) {
	p := pools{label: "mysql://" + strings.ReplaceAll(cfg.Addr, "/", "%2F") + "/" + cfg.DBName, own: true}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		s, err := (&net.Dialer{Timeout: cfg.Timeout}).DialContext(ctx, network, addr)
		if err == nil {
			dialed(ctx, s)
		}
		return s, err
	}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return p, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	db := sql.OpenDB(connector{c, cfg})
	if o.Strategy == StrategyTable {
		p.kept, p.work = db, newPool(db, o.Connections)
		db.SetMaxIdleConns(o.Connections + 1) // and that of a wait
		db.SetConnMaxIdleTime(idleMost)
		return p, nil
	}
	p.work = &pool{DB: db}
	// A held lock's connection is silent between two renewals, however long they are.
	bound := cfg.Clone()
	bound.Params["wait_timeout"] = "86400"
	if c, err = mysql.NewConnector(bound); err != nil {
		return p, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	p.kept = sql.OpenDB(connector{c, bound})
	limit(db, defaultConnections)
	limit(p.kept, o.Connections)
	return p, nil
}

// connector bounds how long a new connection takes. The library bounds the dial, and then waits for
// ever for a server that accepts and says nothing: one that has stopped, or of another kind, which
// waits for its client's first word. A caller's context may have no end.
type connector struct {
	sqldriver.Connector
	cfg *mysql.Config
}

func (c connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	most := 2 * c.cfg.Timeout
	short, cancel := context.WithTimeoutCause(ctx, most, errSilent)
	defer cancel()
	made, err := guarded(short, c.Connector)
	switch {
	case err != nil && context.Cause(short) == errSilent:
		return nil, fmt.Errorf("%s did not let us in within %s: is it the port of a MySQL server, and does it have connections left?", c.cfg.Addr, most)
	case err != nil:
		return nil, err
	}
	return made, nil
}

func limit(db *sql.DB, connections int) {
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	db.SetConnMaxIdleTime(idleMost)
}

// discardLogger drops what the client library logs: each message is an error as well.
type discardLogger struct{}

func (discardLogger) Print(...any) {}
