package backends

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// RedisOptions configure a Redis server. The zero value is a server without password or
// persistence: it forgets everything when it restarts.
type RedisOptions struct {
	AppendOnly  bool   // keeps every write in the append-only file, as kill -9 finds it
	AppendFsync string // "always", "everysec" (Redis's default) or "no"

	User, Password string // User "" with a Password: requirepass
	TLS            bool   // serves TLS and no plaintext

	Config []string // further lines of redis.conf: "maxmemory 2mb"
}

// Redis is one Redis server.
type Redis struct {
	*Process
	Addr string      // host:port
	TLS  *tls.Config // trusts the server's certificate; nil without RedisOptions.TLS
	CA   string      // file of the certificate that signed the server's; "" without TLS

	options RedisOptions
	busPort int // a cluster node's
}

// StartRedis starts a server for this test alone.
func StartRedis(tb testing.TB, o RedisOptions) *Redis {
	tb.Helper()
	return private(tb, func() (*Redis, error) { return startRedis(o) }, redisServer)
}

var sharedRedis once[*Redis]

// SharedRedis returns the process's server, which has no password and no persistence.
func SharedRedis(tb testing.TB) *Redis {
	tb.Helper()
	return sharedRedis.get(tb, func() (*Redis, error) { return startRedis(RedisOptions{}) }, redisServer)
}

// StartRedisNodes starts n servers that know nothing of each other, as Redlock wants them.
func StartRedisNodes(tb testing.TB, n int, o RedisOptions) []*Redis {
	tb.Helper()
	nodes := private(tb, func() (*redisNodes, error) { return startRedisNodes(n, o) }, redisServer)
	return nodes.all
}

var sharedRedisNodes once[*redisNodes]

// SharedRedisNodes returns the process's five independent servers.
func SharedRedisNodes(tb testing.TB) []*Redis {
	tb.Helper()
	return sharedRedisNodes.get(tb, func() (*redisNodes, error) { return startRedisNodes(5, RedisOptions{}) }, redisServer).all
}

type redisNodes struct {
	group
	all []*Redis
}

func startRedisNodes(n int, o RedisOptions) (*redisNodes, error) {
	all, err := startAll(n, func(int) (*Redis, error) { return startRedis(o) })
	if err != nil {
		return nil, err
	}
	return &redisNodes{processesOf(all), all}, nil
}

func processesOf(all []*Redis) group {
	var g group
	for _, r := range all {
		g = append(g, r.Process)
	}
	return g
}

// URL names the server as redislock's URL does, with user name and password.
func (r *Redis) URL() string {
	u := url.URL{Scheme: "redis", Host: r.Addr}
	if r.options.TLS {
		u.Scheme = "rediss"
	}
	if r.options.Password != "" {
		u.User = url.UserPassword(r.options.User, r.options.Password)
	}
	return u.String()
}

// Do sends one command over a separate connection and returns the reply in a readable form: a
// status or string as it is, an array one element a line, nil as "(nil)".
func (r *Redis) Do(args ...string) (string, error) {
	c, err := r.connect()
	if err != nil {
		return "", err
	}
	defer c.conn.Close()
	return c.do(args...)
}

// patience is how long one command may take. A machine with thirty processes for each
// processor has been seen to take more than two seconds; a stopped server takes all of it.
const patience = 8 * time.Second

// connect returns a connection that has logged in, for one command or a few.
func (r *Redis) connect() (*resp, error) {
	conn, err := net.DialTimeout("tcp", r.Addr, patience)
	if err != nil {
		return nil, err
	}
	if r.TLS != nil {
		conn = tls.Client(conn, r.TLS)
	}
	c := newRESP(conn)
	err = conn.SetDeadline(time.Now().Add(patience))
	if o := r.options; err == nil && o.Password != "" {
		auth := []string{"AUTH", o.Password}
		if o.User != "" {
			auth = []string{"AUTH", o.User, o.Password}
		}
		_, err = c.do(auth...)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func startRedis(o RedisOptions) (*Redis, error) { return startRedisAs("redis", o) }

// startRedisAs starts the program as a "redis", a "sentinel" or a "cluster-node".
func startRedisAs(role string, o RedisOptions) (*Redis, error) {
	ports, release, err := serverprocess.ReservePorts(2) // a cluster's nodes talk on the second
	for err == nil && role == "cluster-node" && !busFits(ports) {
		release()
		ports, release, err = serverprocess.ReservePorts(2)
	}
	if err != nil {
		return nil, err
	}
	r := &Redis{Addr: serverprocess.Local(ports[0]), options: o}
	dir, err := serverprocess.NewDir(role, nil)
	if err != nil {
		return nil, err
	}
	conf, err := r.config(dir, ports[0])
	argv := []string{redisServer.path(0), "redis.conf"}
	switch role {
	case "sentinel":
		argv = append(argv, "--sentinel")
	case "cluster-node":
		conf = append(conf, "cluster-enabled yes")
		if RedisVersion() == "6.2" {
			ports[1] = ports[0] + oldBus
		} else {
			conf = append(conf, fmt.Sprintf("cluster-port %d", ports[1]))
		}
	}
	if err == nil {
		// In a file and not as arguments: a sentinel rewrites its own.
		err = serverprocess.WriteFile(filepath.Join(dir, "redis.conf"), nil, conf...)
	}
	if err != nil {
		return nil, err
	}
	r.Process, err = serverprocess.Start(serverprocess.Command{
		Name: role + " " + r.Addr, Argv: argv, Dir: dir, Release: release, Stop: serverprocess.Terminate,
		Ready: func() error { return r.expect("PONG", "PING") },
	})
	r.busPort = ports[1]
	if err == nil && role == "redis" {
		err = r.sayNew()
	}
	return r, err
}

// sayNew says that this process has no locks to remember, as an operator may: redislock would wait
// for those that it may have forgotten before its start. A server that is started again says nothing.
func (r *Redis) sayNew() error {
	var err error
	for range 5 { // others may write so much to the disk that the answer takes longer than one request may
		var id string
		if id, err = r.runID(); err != nil {
			continue
		}
		const script = "for db = 0, 15 do redis.call('SELECT', db) redis.call('SET', 'hasp:new', ARGV[1]) end"
		_, err = r.Do("EVAL", script, "0", id)
		if err == nil || refusesWrites.MatchString(err.Error()) { // by a replica, or a cluster's node that is not ready
			return nil
		}
	}
	return err
}

// runID identifies the server's process.
func (r *Redis) runID() (string, error) {
	info, err := r.Do("INFO", "server")
	_, after, _ := strings.Cut(info, "run_id:")
	id, _, _ := strings.Cut(after, "\r")
	return id, err
}

var refusesWrites = regexp.MustCompile("READONLY|read only|CLUSTERDOWN|MOVED|NOREPLICAS|in cluster|in a cluster|DB index")

func (r *Redis) config(dir string, port int) ([]string, error) {
	o := r.options
	conf := []string{"bind 127.0.0.1", "dir .", `save ""`, "appendonly no"}
	if o.AppendOnly {
		conf[3] = "appendonly yes"
	}
	if o.AppendFsync != "" {
		conf = append(conf, "appendfsync "+o.AppendFsync)
	}
	switch {
	case o.User != "":
		// The default user stays off, so that a client which forgets to log in fails.
		conf = append(conf, "user default off", fmt.Sprintf("user %s on >%s ~* &* +@all", o.User, o.Password))
	case o.Password != "":
		conf = append(conf, "requirepass "+o.Password)
	}
	if !o.TLS {
		return append(append(conf, fmt.Sprintf("port %d", port)), o.Config...), nil
	}
	c, err := newCertificates(dir, nil)
	if err != nil {
		return nil, err
	}
	r.TLS, r.CA = c.client, c.ca
	conf = append(conf, "port 0", fmt.Sprintf("tls-port %d", port), "tls-auth-clients no",
		"tls-cert-file "+c.cert, "tls-key-file "+c.key, "tls-ca-cert-file "+c.ca)
	return append(conf, o.Config...), nil
}

// expect sends a command and complains about any other reply than the one wanted.
func (r *Redis) expect(want string, args ...string) error {
	got, err := r.Do(args...)
	if err == nil && got != want {
		err = fmt.Errorf("%s to %s: %q, want %q", strings.Join(args, " "), r.Addr, got, want)
	}
	return err
}
