package backends

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// ZooKeeperOptions configure ZooKeeper. The zero value ticks every 500 ms, so that
// sessions may time out after 1 s.
type ZooKeeperOptions struct {
	TLS    bool     // for clients
	Config []string // further lines of zoo.cfg; they win over ours: "tickTime=200"
}

// ZooKeeper is one server, of an ensemble or alone.
type ZooKeeper struct {
	*Process
	Addr string      // host:port for clients
	TLS  *tls.Config // trusts the server's certificate; nil without ZooKeeperOptions.TLS
	CA   string      // file of the certificate that signed the server's; "" without TLS
}

// ZooKeeperEnsemble is three servers.
type ZooKeeperEnsemble struct {
	group
	Members []*ZooKeeper
}

// StartZooKeeper starts a single server for this test alone.
func StartZooKeeper(tb testing.TB, o ZooKeeperOptions) *ZooKeeper {
	tb.Helper()
	return private(tb, func() (*ZooKeeper, error) { return startZooKeeper(o) }, javaVM, zookeeperJar)
}

var sharedZooKeeper once[*ZooKeeper]

// SharedZooKeeper returns the process's single server.
func SharedZooKeeper(tb testing.TB) *ZooKeeper {
	tb.Helper()
	return sharedZooKeeper.get(tb, func() (*ZooKeeper, error) { return startZooKeeper(ZooKeeperOptions{}) }, javaVM, zookeeperJar)
}

// StartZooKeeperEnsemble starts three servers for this test alone.
func StartZooKeeperEnsemble(tb testing.TB, o ZooKeeperOptions) *ZooKeeperEnsemble {
	tb.Helper()
	return private(tb, func() (*ZooKeeperEnsemble, error) { return startZooKeepers(3, o) }, javaVM, zookeeperJar)
}

var sharedZooKeeperEnsemble once[*ZooKeeperEnsemble]

// SharedZooKeeperEnsemble returns the process's ensemble.
func SharedZooKeeperEnsemble(tb testing.TB) *ZooKeeperEnsemble {
	tb.Helper()
	start := func() (*ZooKeeperEnsemble, error) { return startZooKeepers(3, ZooKeeperOptions{}) }
	return sharedZooKeeperEnsemble.get(tb, start, javaVM, zookeeperJar)
}

// Addrs are the addresses of all servers.
func (e *ZooKeeperEnsemble) Addrs() []string {
	var addrs []string
	for _, m := range e.Members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// Leader returns the member that leads at the moment.
func (e *ZooKeeperEnsemble) Leader() (*ZooKeeper, error) {
	for _, m := range e.Members {
		if reply, err := m.Ask("srvr"); err == nil && strings.Contains(reply, "Mode: leader") {
			return m, nil
		}
	}
	return nil, fmt.Errorf("none of %v leads", e.Addrs())
}

// Ask sends one of the server's four-letter commands (all are allowed), such as mntr,
// cons or wchs, and returns the reply.
func (z *ZooKeeper) Ask(command string) (string, error) {
	conn, err := z.dial()
	if err != nil {
		return "", err
	}
	_, err = io.WriteString(conn, command)
	if err != nil {
		return "", errors.Join(err, conn.Close())
	}
	reply, err := io.ReadAll(conn)
	return string(reply), errors.Join(err, conn.Close())
}

func (z *ZooKeeper) dial() (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", z.Addr, patience)
	if err != nil {
		return nil, err
	}
	if z.TLS != nil {
		conn = tls.Client(conn, z.TLS)
	}
	return conn, conn.SetDeadline(time.Now().Add(patience))
}

// serving complains unless the server takes requests. "ruok" would not tell: a server
// without a quorum says yes.
func (z *ZooKeeper) serving() error {
	reply, err := z.Ask("srvr")
	if err == nil && !strings.Contains(reply, "Mode: ") {
		err = fmt.Errorf("%s: %s", z.Addr, reply)
	}
	return err
}

func startZooKeeper(o ZooKeeperOptions) (*ZooKeeper, error) {
	e, err := startZooKeepers(1, o)
	if err != nil {
		return nil, err
	}
	return e.Members[0], nil
}

// startZooKeepers starts n servers at the same time: none serves before a majority has
// found together.
func startZooKeepers(n int, o ZooKeeperOptions) (*ZooKeeperEnsemble, error) {
	var peers []string
	ports := make([][]int, n)
	releases := make([]func(), n)
	for i := range n {
		var err error
		if ports[i], releases[i], err = serverprocess.ReservePorts(3); err != nil {
			return nil, err
		}
		peers = append(peers, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, ports[i][1], ports[i][2]))
	}
	if n == 1 {
		peers = nil // alone
	}
	members, err := startAll(n, func(i int) (*ZooKeeper, error) {
		return startZooKeeperMember(i+1, ports[i][0], peers, releases[i], o)
	})
	if err != nil {
		return nil, err
	}
	e := &ZooKeeperEnsemble{Members: members}
	for _, m := range members {
		e.group = append(e.group, m.Process)
	}
	return e, nil
}

func startZooKeeperMember(id, port int, peers []string, release func(), o ZooKeeperOptions) (*ZooKeeper, error) {
	z := &ZooKeeper{Addr: serverprocess.Local(port)}
	dir, err := serverprocess.NewDir("zookeeper", nil)
	if err != nil {
		return nil, err
	}
	conf := append([]string{
		"dataDir=data", "tickTime=500", "initLimit=20", "syncLimit=10",
		"admin.enableServer=false", "4lw.commands.whitelist=*", "maxClientCnxns=0",
		"extendedTypesEnabled=true", // nodes with a time to live
		"maxSessionTimeout=3600000", // ms; the default is 20 ticks: a request for an hour would get ten seconds
		"preAllocSize=1024",         // KB; the log of 64 MB would be most of a short test's work
	}, peers...)
	if o.TLS {
		c, err := newCertificates(dir, nil)
		if err != nil {
			return nil, err
		}
		z.TLS, z.CA = c.client, c.ca
		store := filepath.Join(dir, "keystore.pem") // ZooKeeper wants both in one file
		if err := concatenate(store, c.key, c.cert); err != nil {
			return nil, err
		}
		conf = append(conf, fmt.Sprintf("secureClientPort=%d", port), "secureClientPortAddress=127.0.0.1",
			"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory", "ssl.clientAuth=none",
			"ssl.keyStore.location="+store, "ssl.keyStore.type=PEM", "ssl.trustStore.location="+c.ca, "ssl.trustStore.type=PEM")
	} else {
		conf = append(conf, fmt.Sprintf("clientPort=%d", port), "clientPortAddress=127.0.0.1")
	}
	conf = append(conf, o.Config...)
	if err := errors.Join(
		os.Mkdir(filepath.Join(dir, "data"), 0o700),
		serverprocess.WriteFile(filepath.Join(dir, "data", "myid"), nil, strconv.Itoa(id)),
		serverprocess.WriteFile(filepath.Join(dir, "zoo.cfg"), nil, conf...),
	); err != nil {
		return nil, err
	}
	z.Process, err = serverprocess.Start(serverprocess.Command{
		Name: "zookeeper " + z.Addr, Dir: dir, Release: release, Stop: serverprocess.Terminate, Ready: z.serving,
		Argv: []string{javaVM.path(0), "-Xmx512m", "-Djava.awt.headless=true",
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
			"-cp", zookeeperClassPath(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"},
	})
	return z, err
}

// zookeeperClassPath adds to the server's jar, which names most of what it needs, what
// it does not name: a logger that writes, and the rest of netty, which TLS uses.
func zookeeperClassPath() string {
	jar := zookeeperJar.path(0)
	beside := func(name string) string { return filepath.Join(filepath.Dir(jar), name) }
	return strings.Join([]string{jar, beside("slf4j-simple.jar"), beside("netty-codec.jar"), beside("netty-resolver.jar")}, ":")
}

func concatenate(to string, files ...string) error {
	var all []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		all = append(all, b...)
	}
	return os.WriteFile(to, all, 0o600)
}
